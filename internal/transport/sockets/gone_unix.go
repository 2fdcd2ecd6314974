//go:build unix && !linux

package sockets

import "net"

// Gone says whether the peer has closed the connection. As long as bytes that it has sent
// before wait to be read, that is not seen here. It does not wait, and reads nothing.
func Gone(nc net.Conn) bool {
	raw := Raw(below(nc))
	return raw != nil && AtEnd(raw)
}
