// Package soak lets thousands of clients come and go at the built program for an hour,
// over mutual TLS and by a policy, with every feature in use. It watches what the process
// holds: resident memory, Go heap, goroutines, descriptors and data directory must stay
// flat while the load stays the same, and what belonged to clients must be gone when they
// are.
//
// It knows the program by its flags, its sockets, its $SYS topics and /proc alone. Command
// soak runs it for an hour; the package's test for some seconds.
package soak
