// Package transport moves bytes between sockets and memory. An idle peer holds no
// input buffer, and no goroutine waits for a peer that does not read, except one of that
// connection while its output waits.
//
// The broker calls it: one [Conn] per client, read by that client's one reader
// goroutine, written to by all goroutines; one [Flushers] for the whole process. It
// knows nothing of MQTT: a Conn is a stream of bytes, and where a packet ends is
// the caller's business.
//
// On a TCP or Unix socket, also with TLS on it (tls.go), reads and writes go straight to
// the non-blocking file descriptor (raw_unix.go). Every other net.Conn (a WebSocket, a
// pipe, a socket of a system without raw_unix.go) takes the plain path. That has the same
// functions and promises, but needs a goroutine while there is something to write, unless it
// is a [Stream].
//
// It never starts a goroutine for an idle connection, never blocks in Flush or
// FlushSoon, never calls a callback with a lock held, and never reuses memory
// that a write is still reading from.
package transport
