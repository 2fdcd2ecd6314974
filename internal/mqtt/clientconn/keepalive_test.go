package clientconn

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/fromserver"
)

func frame(b []byte) fromserver.Frame { return fromserver.Frame{Header: b[0], Body: b[2:], Bytes: b} }

// quiet is a connection without reader, writer and timer: the test looks at it.
func quiet() *Conn { return &Conn{out: newOutput(nil)} }

// pinged is how many PINGREQs have been appended since the last call; with them the test
// plays the writer.
func (c *Conn) pinged() int {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	n := len(c.out.pending) / 2
	if n > 0 {
		c.out.pending = nil
		c.out.writes++
	}
	return n
}

// A connection on which nothing happens is pinged in time: the server waits one and a half
// intervals, that is six looks [MQTT-3.1.2-22].
func TestPingsOfAnIdleConnection(t *testing.T) {
	t.Parallel()
	c := quiet()
	since, pings := 0, 0
	for range 100 {
		if !c.pings.look(c) {
			t.Fatal("it is called dead")
		}
		since++
		if n := c.pinged(); n > 0 {
			since, pings = 0, pings+n
			c.reads.Add(1) // the answer
		}
		if since >= looksPerInterval {
			t.Fatalf("nothing was sent for %d looks", since)
		}
	}
	if pings < 100/looksPerInterval || pings > 100/2 {
		t.Errorf("%d pings in 100 looks", pings)
	}
}

// A server that is silent is noticed within two intervals, also while the client sends.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]bool{"idle": false, "the client sends": true} {
		c := quiet()
		looks := 1
		for c.pings.look(c) {
			if c.pinged(); busy {
				c.out.writes++
			}
			if looks++; looks > 2*looksPerInterval {
				t.Errorf("%s: not noticed in %d looks", name, looks)
				break
			}
		}
		if looks < looksPerInterval+1 {
			t.Errorf("%s: called dead after %d looks", name, looks)
		}
	}
}

// A busy connection is not pinged.
func TestBusyConnection(t *testing.T) {
	t.Parallel()
	c := quiet()
	for range 100 {
		c.out.writes++
		c.reads.Add(1)
		if !c.pings.look(c) || c.pinged() > 0 {
			t.Fatal("it was pinged, or called dead")
		}
	}
}

// The server's Keep Alive counts instead of the client's [MQTT-3.1.2-21], and a PINGREQ
// leaves while the client is busy with a message.
func TestPingsOverTheWire(t *testing.T) {
	t.Parallel()
	busy, free := make(chan struct{}), make(chan struct{})
	received := func(*mqtt.Publish) { close(busy); <-free }
	c, s := connect(t, Config{Received: received}, mqtt.Connect{KeepAlive: 3600}, mqtt.Connack{ServerKeepAlive: 1, HasServerKeepAlive: true})
	s.send(delivery(0, 0))
	<-busy
	if p := s.next(); p.Type() != mqtt.PINGREQ {
		t.Errorf("got %v", p.Type())
	}
	close(free)
	select { // and no answer comes
	case <-c.Done():
	case <-time.After(patience):
		t.Fatal("a dead server is not noticed")
	}
	if !errors.Is(c.Err(), errNoAnswer) {
		t.Errorf("it ended with %v", c.Err())
	}
}
