package relay

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
)

const (
	serverUnavailable   = 0x88 // MQTT 5
	quotaExceeded       = 0x97 // MQTT 5
	serverUnavailableV3 = 0x03 // which in MQTT 3.1.1 stands for both
	connectType         = 0x10
	// farewell is how long a client that is refused may take to read why, and one that is turned
	// away to say which version it speaks.
	farewell = time.Second
	// maxFarewells bounds the clients that are turned away at the same time and are told why. The
	// others are disconnected.
	maxFarewells = 64
	// turnPause is how often the log says that clients are turned away.
	turnPause = time.Second
)

// turnAway closes a connection beyond the bound. The client gets the CONNACK that the leader
// would send at its own bound of connections, if it sends a CONNECT soon.
func (s *Socket) turnAway(c net.Conn) {
	r := s.relay
	n := r.beyond.Add(1)
	if now, before := time.Since(r.began), r.said.Load(); before == 0 || now-time.Duration(before) > turnPause {
		if r.said.CompareAndSwap(before, int64(now)) {
			r.o.Logger.Warn("closing new connections: this node holds and passes on as many as it may (--max-connections)", "remote", c.RemoteAddr(), "maximum", r.most.Load(), "closed", n)
		}
	}
	select {
	case r.farewells <- struct{}{}:
	default:
		_ = c.Close()
		return
	}
	r.running.Go(func() {
		defer failstop.End(r.o.Logger, "a connection beyond the bound")
		defer func() { <-r.farewells }()
		stop := context.AfterFunc(r.ending, func() { _ = c.Close() })
		defer stop()
		if s.isPlain() {
			_ = c.SetDeadline(time.Now().Add(r.o.farewell))
			awaitBytes(c)
		}
		r.refuse(c, s.isPlain(), quotaExceeded)
	})
}

// isPlain says whether clients of the socket speak MQTT without TLS and WebSocket, and nothing
// comes before.
func (s *Socket) isPlain() bool { return !s.url.IsTLS() && !s.url.IsWebSocket() && !s.proxy }

// refuse closes a connection that no leader has taken. If the client speaks plain MQTT and
// has sent the beginning of its CONNECT, it gets a CONNACK with code, that of MQTT 5.
func (r *Relay) refuse(c net.Conn, plain bool, code byte) {
	defer c.Close()
	if !plain {
		return
	}
	_ = c.SetDeadline(time.Now().Add(r.o.farewell))
	connack := refusal(peek(c), code)
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

// refusal is the CONNACK that refuses a client whose CONNECT begins like this; nil: this is no
// CONNECT.
func refusal(connect []byte, code byte) []byte {
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
		return []byte{0x20, 3, 0, code, 0}
	case string(rest[:name]) == "MQTT" && level == 4, string(rest[:name]) == "MQIsdp" && level == 3:
		return []byte{0x20, 2, 0, serverUnavailableV3}
	}
	return nil
}
