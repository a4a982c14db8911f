// Package engine is the front door of the o2ib engine: start and stop it, send through it, tune it, and
// read its state. The appliance and the page see only this package.
package engine
