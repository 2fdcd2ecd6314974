// Package service is the state store's front door in the broker: a publish to a
// request topic comes in, a response and notifications go out.
//
// The broker calls it on the goroutine of the connection's reader. It judges
// what section 2 of the protocol says about requests, has package protocol parse
// the command in place, asks for the permission, and hands the command to the
// engine's session of that connection. The engine answers inside that call or
// later, when what it did is on disk; either way PUBACK and response travel
// together, in the order of the requests.
//
// It keeps no state of its own but counters, and blocks only where the engine does.
package service
