//go:build unix && !linux

package relay

import (
	"net"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// gone says whether the peer has closed the connection. As long as bytes that it has sent
// before wait to be read, that is not seen here.
func gone(c net.Conn) bool {
	raw := sockets.Raw(socketOf(c))
	return raw != nil && goneByPeek(raw)
}
