// Package transport carries the messages of the consensus between the nodes of a cluster,
// over TCP and the nodes' ports (package port). Each node has one connection to each other node, on which it sends; what it
// receives comes over the connections that the others made.
//
// It promises little, because the consensus needs little: messages may be lost, when a
// connection breaks or a node does not keep up, and those of two connections may overtake
// each other. What arrives is whole, and from a node of the same cluster.
//
// # On the wire
//
// All numbers are little-endian. A connection begins with
//
//	magic    16  names the protocol and its version; the port reads it
//	cluster   8
//	from      8  the node that made the connection
//	to        8  the node that it takes the other one for
//	level     4  the format levels that its program knows: the lowest in the upper half, the highest in the lower
//	length    2  of its address, 1 KiB at the most
//	address      where the other nodes reach it
//
// The receiver closes a connection for another cluster or node, and says so in its log. Then
// messages follow, each after its length in 4 bytes, as protocol buffers. Nothing is sent in
// the other direction.
package transport
