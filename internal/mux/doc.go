// Package mux carries many streams over one connection, a link. Packages front and fronts
// use it between a program that holds clients and the leader of a cluster: a stream for each
// client.
//
// # Frames
//
// A frame is a type (1 byte), the number of a stream (4 bytes, big-endian), a length (2 bytes)
// and so many bytes of payload.
//
//	OPEN    begins a stream; the payload says what it is about. Only the side that has made
//	        the link sends it, with numbers that grow.
//	DATA    bytes of a stream, no more than the peer has given credit for.
//	CREDIT  so many more bytes (4) may be sent.
//	CLOSE   ends a stream in both directions, behind its data; the payload is the reason,
//	        empty for an end as agreed. Frames of a stream that has ended are dropped.
//	PING    of stream 0: the side that sends it is there.
//
// # Bounds
//
// A stream has [Window] bytes at the most in each direction that its reader has not read.
// Options.MaxStreams bounds the streams of a link, and Options.Unread the bytes that all
// streams of some links hold. Output that waits for the connection is bounded by maxOutput: a
// stream that finds no room waits. A peer that breaks the rules, reads nothing for writeTimeout
// or sends nothing for silence loses the link, and with it all streams.
//
// # Goroutines
//
// A link has a goroutine that reads and one that writes; an idle stream has none, and no
// buffer. What many streams write while a system call is under way leaves with the next one:
// that is what a link saves, together with reading the requests of many clients at once.
//
// Why not a library: yamux gives each stream a window of 256 KiB at least and each write a
// system call of its own; smux does not bound a stream below its session, and calls nothing
// when data arrive. Both need a goroutine to read each stream on both sides.
package mux
