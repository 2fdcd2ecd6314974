// Package clientconn is one MQTT 5 connection of a client, from its CONNECT to its end, at
// all three QoS. Package client, and the commands pub and sub, call it; what survives a
// connection is theirs.
//
// A [Conn] (conn.go) has two goroutines. The reader (reader.go) decodes what the server
// sends, judges it, and hands over messages and acknowledgements without waiting for
// anything. The writer writes the output (output.go), which is a buffer: a packet is
// appended to it whole, so the packets of many goroutines leave in one system call, and no
// caller waits for a socket that does not take bytes longer than its context allows. The
// window (window.go) has the packet identifiers in use and keeps to the server's Receive
// Maximum. What of the MQTT session outlives a connection belongs to the caller, who gives it
// to the next one: messages that the server has not acknowledged (unacknowledged.go), which
// are sent again, and those received at QoS 2 ([Unreleased]). Pings (keepalive.go) are sent by a timer.
//
// The server is not trusted: a packet that is larger than the client allows, malformed, or
// against the protocol ends the connection with a DISCONNECT that says why, and so does a
// server that sends more messages than Receive Maximum allows or more acknowledgements than
// it reads.
package clientconn
