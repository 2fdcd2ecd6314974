package broker

import (
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
	for {
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
			c.checkSilence(now)
			c.checkExpiry(wall)
		}
		clear(conns)
	}
}

// checkSilence closes the connection if its client has been silent for too long, or has
// been sending one packet for too long: bytes of it keep a connection alive, as a large
// packet may take its time on a slow line, but not for ever. A front answers the pings of its
// clients itself, and closes the connections of those that are silent. The sweep's.
func (c *Conn) checkSilence(now int64) {
	connected := c.Connected.Load()
	heard := connected && c.heard.Load()&heardSweep != 0
	if heard {
		c.heard.And(^heardSweep)
	}
	if heard || c.heldUp() {
		c.active.Store(now)
	}
	if n := c.unfinished.Load(); n == 0 || n != c.unfinishedSeen.Load() || readerState(c.readerState.Load()) != readerListens {
		c.unfinishedSeen.Store(n)
		c.unfinishedSince.Store(now)
	}
	silent := time.Duration(now-c.active.Load()) * time.Millisecond
	switch {
	case !connected:
		if silent > c.b.Limits().ConnectTimeout {
			c.Disconnect(mqtt.KeepAliveTimeout, "")
		}
	case c.KeepAlive > 0 && !c.origin.Fronted && silent > time.Duration(c.KeepAlive)*time.Second*3/2:
		c.b.Counters.KeepAliveTimeouts.Add(1)
		c.Disconnect(mqtt.KeepAliveTimeout, "nothing was heard for one and a half times the keep-alive")
	case time.Duration(now-c.unfinishedSince.Load())*time.Millisecond > c.b.Limits().PacketTimeout && c.unfinishedSeen.Load() != 0:
		c.b.Counters.KeepAliveTimeouts.Add(1)
		c.Disconnect(mqtt.KeepAliveTimeout, "a packet was begun and not sent to its end in time")
	}
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
