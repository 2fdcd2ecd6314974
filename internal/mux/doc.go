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
//	TAKE    the side that gets an OPEN has taken the stream. Before, the other one sends no DATA,
//	        so that it can open the stream on another link if this one ends.
//	LEAVE   of stream 0: the side that gets OPEN takes no more of them; streams that there are
//	        go on.
//
// # Bounds
//
// A stream has [Window] bytes at the most in each direction that its reader has not read.
// Options.MaxStreams bounds the streams of a link, and Options.Unread the buffers of
// all streams of some links. Output that waits for the connection is bounded by maxOutput: a
// stream that finds no room waits. A peer that breaks the rules, reads nothing for writeTimeout
// or sends nothing for silence loses the link, and with it all streams.
//
// # Goroutines
//
// A link has a goroutine that reads and one that writes; an idle stream has none, and no
// buffer. What many streams write while a system call is under way leaves with the next one:
// that is what a link saves, together with reading the requests of many clients at once.
//
// Why not a library: yamux (0.1.2) gives each stream a window of 256 KiB at least, and writes the
// header and the body of each frame with a system call of their own. smux (1.5.58) bounds a stream
// since version 2 of its protocol (MaxStreamBuffer), but trusts the other side to keep to that, and
// when all streams together hold MaxReceiveBuffer bytes it reads nothing of the link, so that streams
// which are not read hold up the others; each frame is a system call, too. Neither calls anything when
// data arrive: both need a goroutine that reads each stream, on both sides.
package mux
