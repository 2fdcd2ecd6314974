package relay

import (
	"io"
	"net"
	"time"
)

const (
	serverUnavailable   = 0x88 // MQTT 5
	serverUnavailableV3 = 0x03
	connectType         = 0x10
	// farewell is how long a client that is refused may take to read why.
	farewell = time.Second
)

// refuse closes a connection that no leader has taken. If the client speaks plain MQTT and
// has sent the beginning of its CONNECT, it gets a CONNACK.
func refuse(c net.Conn, plain bool) {
	defer c.Close()
	if !plain {
		return
	}
	_ = c.SetDeadline(time.Now().Add(farewell))
	connack := unavailable(peek(c))
	if connack == nil {
		return
	}
	if _, err := c.Write(connack); err != nil {
		return
	}
	// What is not read when the socket is closed would make the system send a reset, which
	// may overtake the CONNACK.
	_ = closeWrite(c)
	_, _ = io.Copy(io.Discard, io.LimitReader(c, 1<<20))
}

// peeked is how much of a CONNECT is looked at: up to the level of the protocol.
const peeked = 1 + 4 + 2 + 6 + 1

// unavailable is the CONNACK that refuses a client whose CONNECT begins like this; nil: this
// is no CONNECT.
func unavailable(connect []byte) []byte {
	if len(connect) == 0 || connect[0] != connectType {
		return nil
	}
	rest := connect[1:]
	for range 4 { // the length
		if len(rest) == 0 {
			return nil
		}
		more := rest[0]&0x80 != 0
		rest = rest[1:]
		if !more {
			break
		}
	}
	if len(rest) < 2 {
		return nil
	}
	name := int(rest[0])<<8 | int(rest[1])
	if rest = rest[2:]; len(rest) <= name {
		return nil
	}
	switch level := rest[name]; {
	case string(rest[:name]) == "MQTT" && level == 5:
		return []byte{0x20, 3, 0, serverUnavailable, 0}
	case string(rest[:name]) == "MQTT" && level == 4, string(rest[:name]) == "MQIsdp" && level == 3:
		return []byte{0x20, 2, 0, serverUnavailableV3}
	}
	return nil
}
