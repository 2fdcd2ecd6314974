// Package statestore holds the rules of the state store: a command, the key's
// record and the time go in; the reply, the new record and the notifications
// come out (protocol, sections 3 to 7). [Apply] decides every command, [Expire]
// the deletion of a key whose time has run out; scan tokens are made and checked
// here, and patterns in the package glob below it.
//
// The engine runs the rules, package protocol fills the commands from the wire
// and writes replies and events to it. The rules know neither: no I/O, no clock,
// no locks, no goroutines, nothing global. So they can be run anywhere, and be
// tested against a naive reading of the specification (the model in this
// package's tests).
package statestore
