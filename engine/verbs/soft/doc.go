// Package soft is what providers without an HCA have in common: regions, windows and their keys, and
// completion queues. Nothing in it is shared between providers: each makes its own tables.
package soft
