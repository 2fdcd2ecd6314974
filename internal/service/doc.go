// Package service is the state store's front door in the broker: a publish to a
// request topic comes in, a response and notifications go out.
//
// The broker calls it on the goroutine of the connection's reader. It judges
// what section 2 of the protocol says about requests, has package protocol parse
// the command in place, asks for the permission, and has the engine's session of that
// connection run it (endpoint.go). What the engine has replied becomes the response at
// once (reply.go), while everything about the request is still at hand; the connection
// keeps it, with the PUBACK, until the batch is on disk that the reply waits for, in the
// order of the requests.
//
// It keeps no state of its own but counters, and blocks only where the engine does.
//
// Its tests are those of internal/conformance whose names begin with TestStore, over a
// socket: what it does is seen only there, in packets and their order.
package service
