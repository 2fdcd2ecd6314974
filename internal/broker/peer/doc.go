// Package peer is the client at the other end of a connection, as sessions see it: what
// it takes, the packets that are written to it, and how the connection ends.
//
// The broker's Conn, which reads from the client, embeds a [Peer]. A peer knows neither
// sessions nor what the client may do.
package peer
