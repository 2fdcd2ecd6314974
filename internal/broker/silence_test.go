package broker

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// connOf finds the connection of a client that is connected.
func (n *node) connOf(id string) *Conn {
	n.t.Helper()
	s := n.broker.Sessions.Lookup(id)
	if s == nil {
		n.t.Fatalf("client %s has no session", id)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return n.broker.connOf(s.Peer)
}

// A client whose reader waits for the disk is not silent: what it sends stays in its
// socket meanwhile. One that really is silent is cut off although the disk hangs.
func TestAReaderHeldUpByTheDiskIsNotSilent(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	n := run(t, disk, Limits{ReceiveMaximum: 1, MaxInflight: 1})
	const keepAlive = 600 // seconds, which the test takes from now on
	busy := n.connect(mqtttest.ClientID("busy"), mqtttest.KeepAlive(keepAlive), mqtttest.V311())
	silent := n.connect(mqtttest.ClientID("silent"), mqtttest.KeepAlive(keepAlive))
	disk.Hold()
	defer disk.Release(nil)
	for i := range 2 * spareAcks { // more than may wait for the disk
		busy.SendPublish(mqtttest.Message{Topic: "kept", Payload: fmt.Sprint(i), QoS: 1, Retain: true})
	}
	c, other := n.connOf("busy"), n.connOf("silent")
	for c.acks.Pending() <= spareAcks+2 {
		time.Sleep(time.Millisecond)
	}
	for look := range int64(10) { // each three times the keep-alive later
		now := n.broker.Now() + 3*1000*keepAlive*look
		c.checkSilence(now, 0)
		other.checkSilence(now, 0)
	}
	if c.Stopping.Load() {
		t.Error("the client whose reader waits for the disk was disconnected")
	}
	silent.ExpectDisconnect(mqtt.KeepAliveTimeout)
	disk.Release(nil)
	for range 2 * spareAcks {
		busy.Expect(mqtt.PUBACK)
	}
}

// A CONNECT that waits for the disk does not time out.
func TestAConnectHeldUpByTheDiskDoesNotTimeOut(t *testing.T) {
	t.Parallel()
	disk := journaltest.NewDisk(vfs.NewMem())
	n := run(t, disk, Limits{})
	disk.Hold()
	defer disk.Release(nil)
	c := mqtttest.Dial(t, n.addr)
	c.SendConnect(mqtttest.Persistent("c"))
	disk.AwaitSync()
	n.broker.mu.Lock()
	var waiting *Conn
	for waiting = range n.broker.conns {
	}
	n.broker.mu.Unlock()
	waiting.checkSilence(n.broker.Now()+time.Hour.Milliseconds(), 0)
	disk.Release(nil)
	if got := c.Expect(mqtt.CONNACK); got.Connack.Code != mqtt.Success {
		t.Errorf("CONNACK %v", got.Connack.Code)
	}
}

// The time that a client has for a packet does not begin anew when its reader is at work, but goes on when
// that listens again.
func TestTimeOfAPacket(t *testing.T) {
	t.Parallel()
	const listens, works = true, false
	var w packetWatch
	for i, look := range []struct {
		elapsed int64
		id      uint32
		listens bool
		want    time.Duration // in ms
	}{
		{250, 0, listens, 0},
		{1000, 3, listens, 0}, // its beginning is seen
		{1000, 3, listens, 1000},
		{1000, 3, works, 1000},
		{2000, 3, works, 1000},
		{500, 3, listens, 1500},
		{500, 5, listens, 0}, // the next one
		{1000, 5, listens, 1000},
		{math.MaxUint32, 5, listens, math.MaxUint32},
		{1000, 0, listens, 0}, // it has come
		{500, 0, works, 0},
	} {
		if got := w.look(look.elapsed, look.id, look.listens); got != look.want*time.Millisecond {
			t.Errorf("look %d, %+v: %v", i, look, got)
		}
	}
}

// A client that takes none of what it asked for is silent as before; one that takes it
// slowly is not.
func TestAClientThatTakesItsOutput(t *testing.T) {
	t.Parallel()
	for _, takes := range []bool{true, false} {
		n := run(t, vfs.NewMem(), Limits{OutputBuffer: 4 << 10})
		const keepAlive = 600
		n.connect(mqtttest.ClientID("c"), mqtttest.KeepAlive(keepAlive)).Ping()
		c := n.connOf("c")
		until(t, "the reader to listen", func() bool { return readerState(c.readerState.Load()) == readerListens })
		c.readerState.Store(uint32(readerWaitsForClient)) // as the reader does before it waits
		if takes {
			c.untaken.Store(100)
		}
		c.heard.Store(0)
		c.checkSilence(n.broker.Now()+3*1000*keepAlive, 0)
		if c.Stopping.Load() == takes {
			t.Errorf("it takes output %v: disconnected %v", takes, c.Stopping.Load())
		}
	}
}
