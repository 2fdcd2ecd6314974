package broker

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// farListener accepts connections that seem to come from another machine.
type farListener struct{ net.Listener }

func (l farListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return farConn{nc}, nil
}

type farConn struct{ net.Conn }

func (farConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(203, 0, 113, 5), Port: 4000}
}

// serveAlso has the node's broker accept on another listener.
func (n *node) serveAlso(wrap func(net.Listener) net.Listener) (addr string) {
	n.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	go func() { _ = n.broker.Serve(wrap(l)) }()
	return l.Addr().String()
}

// Clients of other machines that have taken every connection, and all of those that
// are told so, leave the ones that are kept for clients on this machine.
func TestConnectionsKeptForThisMachine(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{MaxConnections: 3, LoopbackConnections: 2})
	far := n.serveAlso(func(l net.Listener) net.Listener { return farListener{l} })
	for range 3 {
		mqtttest.Connect(t, far)
	}
	for range SpareConnections { // silent, each in the place of one that is told that there are too many
		nc, err := net.Dial("tcp", far)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	for n.broker.Levels().Connections < 3+SpareConnections {
		time.Sleep(time.Millisecond)
	}
	one, two := n.connect(), n.connect()
	one.Ping()
	two.Ping()
	n.connect().Ping()                              // the third takes one from the address that has most
	mqtttest.Refused(t, n.addr, mqtt.QuotaExceeded) // the fourth may not: that address has one more only
	// The place is there again when one of them has gone.
	one.Disconnect()
	until(t, "a place to be there again", func() bool {
		c := mqtttest.Dial(t, n.addr)
		c.SendConnect()
		if c.Expect(mqtt.CONNACK).Connack.Code == mqtt.Success {
			return true
		}
		c.Drop()
		return false
	})
}

// A client of another machine beyond the bound is told so, at the bound it is served.
func TestConnectionsBoundForOthers(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{MaxConnections: 2, LoopbackConnections: 2})
	far := n.serveAlso(func(l net.Listener) net.Listener { return farListener{l} })
	n.connect()
	n.connect() // these two take none of the others' places
	mqtttest.Connect(t, far).Ping()
	mqtttest.Connect(t, far).Ping()
	mqtttest.Refused(t, far, mqtt.QuotaExceeded)
}

// brokenListener fails as often as it is told, and then accepts.
type brokenListener struct {
	net.Listener
	failures int
}

func (l *brokenListener) Accept() (net.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, syscall.EMFILE
	}
	return l.Listener.Accept()
}

func TestAcceptingGoesOnAfterFailures(t *testing.T) {
	t.Parallel()
	n := run(t, vfs.NewMem(), Limits{})
	addr := n.serveAlso(func(l net.Listener) net.Listener { return &brokenListener{l, 3} })
	mqtttest.Connect(t, addr).Ping()
}
