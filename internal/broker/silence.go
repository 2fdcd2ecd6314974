package broker

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// sweepInterval is how often keep-alives are looked at, and how exactly they are
// kept: a client counts as silent from the first look on that finds it so.
const sweepInterval = 250 * time.Millisecond

// sweep closes the connections whose client has been silent for one and a half
// times its keep-alive [MQTT-3.1.2-22], hasn't sent a CONNECT in time, or whose proof of
// who it is has run out.
func (b *Broker) sweep() {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	var conns []*Conn
	for before := b.Now(); ; {
		select {
		case <-tick.C:
		case <-b.stop:
			return
		}
		conns = conns[:0]
		b.mu.Lock()
		for c := range b.conns {
			conns = append(conns, c)
		}
		b.mu.Unlock()
		b.Sessions.FollowClock()
		now, wall := b.Now(), time.UnixMilli(b.WallMs())
		for _, c := range conns {
			c.checkSilence(now, now-before)
			c.checkExpiry(wall)
		}
		before = now
		clear(conns)
	}
}

// checkSilence closes the connection if its client has been silent for too long, or has
// been sending one packet for too long: bytes of it keep a connection alive, as a large
// packet may take its time on a slow line, but not for ever. A front answers the pings of its
// clients itself, and closes the connections of those that are silent. now is on the broker's clock, and elapsed the
// time since the last look, in ms. The sweep's.
func (c *Conn) checkSilence(now, elapsed int64) {
	connected := c.Connected.Load()
	heard := connected && c.heard.Load()&heardSweep != 0
	if heard {
		c.heard.And(^heardSweep)
	}
	if heard || c.heldUp() {
		c.active.Store(now)
	}
	packet := c.packet.look(elapsed, c.unfinished.Load(), readerState(c.readerState.Load()) == readerListens)
	silent := time.Duration(now-c.active.Load()) * time.Millisecond
	switch {
	case !connected:
		if silent > c.b.Limits().ConnectTimeout {
			c.Disconnect(mqtt.KeepAliveTimeout, "")
		}
	case c.KeepAlive > 0 && !c.origin.Fronted && silent > time.Duration(c.KeepAlive)*time.Second*3/2:
		c.b.Counters.KeepAliveTimeouts.Add(1)
		c.Disconnect(mqtt.KeepAliveTimeout, "nothing was heard for one and a half times the keep-alive")
	case packet > c.b.Limits().PacketTimeout:
		c.b.Counters.KeepAliveTimeouts.Add(1)
		c.Disconnect(mqtt.KeepAliveTimeout, "a packet was begun and not sent to its end in time")
	}
}

// packetWatch is what the sweep knows of a packet of which the reader has read a part.
type packetWatch struct {
	id    atomic.Uint32 // Conn.unfinished; 0: there is none
	lasts atomic.Uint32 // what look has told, in ms; at most 49 days
}

// look tells how long the client has been sending the packet id, without the time in which the reader did
// not listen: what the client sent then was in its socket. To begin anew instead would give a client that sends
// byte after byte more time each time that the sweep meets its reader at work. elapsed is the time since the
// sweep looked last, in ms.
func (w *packetWatch) look(elapsed int64, id uint32, listens bool) time.Duration {
	switch {
	case id == 0 || id != w.id.Load():
		w.id.Store(id)
		w.lasts.Store(0)
	case listens:
		w.lasts.Store(uint32(min(int64(w.lasts.Load())+elapsed, math.MaxUint32)))
	}
	return time.Duration(w.lasts.Load()) * time.Millisecond
}

// heldUp says whether the client can't be heard, because its reader is at work or waits,
// for the disk, a lock or memory: what the client has sent meanwhile is in its socket.
// A reader that waits for its own client to take output is held up as long as the client
// takes some. The sweep's.
func (c *Conn) heldUp() bool {
	switch readerState(c.readerState.Load()) {
	case readerWorks:
		return true
	case readerWaitsForClient:
		left := int64(c.Transport.Size())
		return c.untaken.Swap(left) != left
	}
	return false
}
