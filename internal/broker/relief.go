package broker

import (
	"slices"
	"time"

	"holdfast/internal/mqtt"
)

// Relief is what the broker does when traffic has come to its bound in the pool of
// memory: what is on disk as well leaves memory, and if that isn't enough, the
// connections that hold most are closed, until memory isn't tight any more.
// Readers have been held up before that (waitForRoom, transport.Fill), so it is
// connections whose clients don't take what they have asked for, or don't end the
// packets that they have begun.

const (
	// leastRelief is how much a connection holds at least that is closed for the
	// others' sake: those with less are bystanders.
	leastRelief = 32 << 10
	// reliefPatience is for how many looks a packet that is still coming in doesn't
	// count, if its connection holds most.
	reliefPatience = 10
	// reliefPause is how long the memory of what was closed may take to come back
	// before more is closed.
	reliefPause = 20 * time.Millisecond
)

// relieve makes room whenever the pool asks for it.
func (b *Broker) relieve() {
	for {
		select {
		case <-b.memory.Relief():
		case <-b.stop:
			return
		}
		for look := 0; b.memory.Tight(); look++ {
			b.evictQueues()
			excess := b.memory.Excess()
			if closed := b.closeHeaviest(excess, look < reliefPatience); !closed && look > reliefPatience && !b.memory.Over() {
				break // only small holders are left, and there is room for them
			}
			select {
			case <-time.After(reliefPause):
			case <-b.stop:
				return
			}
		}
	}
}

// holder is a connection with the bytes that it makes the broker hold.
type holder struct {
	conn  *Conn
	bytes int64
}

// closeHeaviest closes the connections that hold most, until what they hold comes
// to excess. What several hold together is counted with each: it is given back by
// the last of them. With sparing, an unfinished packet that has grown since the last
// look doesn't count.
func (b *Broker) closeHeaviest(excess int64, sparing bool) (closed bool) {
	b.mu.Lock()
	holders := make([]holder, 0, len(b.conns))
	for c := range b.conns {
		holders = append(holders, holder{conn: c})
	}
	b.mu.Unlock()
	for i := range holders {
		c := holders[i].conn
		input := int32(c.tr.HeldInput())
		if !sparing || input == c.inputSeen {
			holders[i].bytes = int64(input)
		}
		c.inputSeen = input
		holders[i].bytes += c.holds()
	}
	slices.SortFunc(holders, func(x, y holder) int { return int(y.bytes - x.bytes) })
	for _, h := range holders {
		if excess <= 0 || h.bytes < leastRelief {
			break
		}
		excess -= h.bytes
		closed = true
		b.stats.Relieved.Add(1)
		b.log.Warn("closing the connection that holds most, as memory for traffic is at its bound",
			"client", h.conn.clientID, "remote", h.conn.remote(), "bytes", h.bytes)
		h.conn.Disconnect(mqtt.QuotaExceeded, "the client holds most of the server's memory, which has reached its bound")
		if h.conn.tr.Size() >= leastRelief {
			h.conn.tr.Close() // what it doesn't take would only go on being held
		}
	}
	return closed
}

// holds is how many bytes wait in memory for the client: in the connection's output,
// behind acknowledgements, and in a queue that ends with the connection.
func (c *Conn) holds() int64 {
	n := int64(c.tr.Size()) + c.acks.waitingBytes()
	if !c.connected.Load() || c.stopping.Load() {
		return n
	}
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == c && !s.durable() {
		n += s.routed.inMemory + s.direct.inMemory
	}
	return n
}

// evictQueues has messages leave memory that are on disk as well.
func (b *Broker) evictQueues() {
	b.mu.Lock()
	sessions := make([]*Session, 0, len(b.sessions))
	for _, s := range b.sessions {
		sessions = append(sessions, s)
	}
	b.mu.Unlock()
	for _, s := range sessions {
		s.mu.Lock()
		s.evict()
		s.mu.Unlock()
	}
}
