// Package transport is the way between a socket and memory: bytes come in
// without a buffer being held for an idle peer, and go out without a goroutine
// waiting for a peer that does not read.
//
// The broker calls it: one [Conn] per client, read by that client's one reader
// goroutine, written to by all goroutines; one [Flushers] for the whole process. It
// knows nothing of MQTT: a Conn is a stream of bytes, and where a packet ends is
// the caller's business.
//
// On a TCP or Unix socket reads and writes go straight to the non-blocking file
// descriptor (raw_unix.go). Everything else that is a net.Conn (TLS, WebSocket,
// pipes, other systems) takes the plain path: the same functions and promises,
// at the price of a goroutine while there is something to write.
//
// It never starts a goroutine for an idle connection, never blocks in Flush or
// FlushSoon, never calls a callback with a lock held, and never reuses memory
// that a write is still reading from.
package transport
