// Package sockets deals with the sockets below connections: how many may be open, how many
// handshakes may be under way on them, where a peer is, and how they close.
//
// The listeners (internal/listen), the broker, the transport and the relay of a cluster call
// it. It never reads or writes.
package sockets

import "net"

// Close closes the socket underneath nc: no farewell that could wait for the peer. Closing
// twice is harmless.
func Close(nc net.Conn) error {
	for {
		switch c := nc.(type) {
		case interface{ CloseNow() error }: // it knows how
			return c.CloseNow()
		case interface{ NetConn() net.Conn }:
			nc = c.NetConn()
		default:
			return nc.Close()
		}
	}
}

// below is the socket below a connection of TLS or WebSocket.
func below(nc net.Conn) net.Conn {
	for {
		over, is := nc.(interface{ NetConn() net.Conn })
		if !is {
			return nc
		}
		nc = over.NetConn()
	}
}
