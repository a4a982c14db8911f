// Package tunables holds every tunable of the engine: one table (All) that forms, command line, API and
// documentation are made from, the values that people set (Values), their validation, and what the engine
// makes of them (Derive).
//
// Everything here is pure: no goroutine, no state, no import of ours. A value is in one of three states,
// and they are never mixed up: not set (absent from Values), set to zero (present, "0"), or equal to the
// default (present, with the default's text). A value belongs to a scope: GlobalScope, or a net such as
// "o2ib1"; a net's value stands before the global one, which stands before the default.
//
// The rules are those of spec o2iblnd section 9, in their [MASTER] form; what a module of 2016 would have
// made of the same values is in Setup2016.
package tunables
