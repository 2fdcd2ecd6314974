package broker

import (
	"cmp"
	"maps"
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
	// reliefQuiet is for how many looks a client may pause in the middle of a packet
	// and the packet is still coming in.
	reliefQuiet = 5
	// reliefPause is the time between two looks.
	reliefPause = 20 * time.Millisecond
	// reliefReturn is for how many looks relieve waits for the memory of a connection
	// that it closed, before more is closed in its place.
	reliefReturn = int(graceToWrite / reliefPause)
)

// relieve makes room whenever the pool asks for it.
func (b *Broker) relieve() {
	for {
		select {
		case <-b.memory.Relief():
		case <-b.stop:
			return
		}
		r := relief{b: b, closed: map[*Conn]closedHolder{}, quiet: map[*Conn]int{}}
		for look := 0; b.memory.Tight(); {
			b.evictQueues()
			closed := r.closeHeaviest(b.memory.Excess(), look < reliefPatience)
			if !closed && look > reliefPatience && !b.memory.Over() {
				break // only small holders are left, and there is room for them
			}
			if len(r.closed) == 0 {
				look++ // otherwise memory is coming back
			}
			select {
			case <-time.After(reliefPause):
			case <-b.stop:
				return
			}
		}
	}
}

// relief is what relieve has found and done since memory was tight.
type relief struct {
	b      *Broker
	closed map[*Conn]closedHolder // connections that were closed and have not ended yet
	quiet  map[*Conn]int          // for how many looks in a row nothing has come of the unfinished packet
}

// closedHolder is what a connection that was closed is to give back, and for how many
// looks that has been waited for.
type closedHolder struct {
	bytes int64
	looks int
}

// holder is a connection with the bytes that it makes the broker hold.
type holder struct {
	conn  *Conn
	bytes int64
}

// closeHeaviest closes the connections that hold most, until what they hold comes to
// excess, together with what those closed before have not given back yet. What several
// hold together is counted with each: it is given back by the last of them. With
// sparing, an unfinished packet that is still coming in doesn't count.
func (r *relief) closeHeaviest(excess int64, sparing bool) (closed bool) {
	b := r.b
	b.mu.Lock()
	holders := make([]holder, 0, len(b.conns))
	for c := range b.conns {
		holders = append(holders, holder{conn: c})
	}
	b.mu.Unlock()
	excess -= r.returning(holders)
	for i := range holders {
		c := holders[i].conn
		if _, is := r.closed[c]; is {
			continue
		}
		input := int64(c.tr.HeldInput())
		if input > 0 && !(r.grows(c) && sparing) {
			holders[i].bytes = input
		}
		holders[i].bytes += c.holds()
	}
	slices.SortFunc(holders, func(x, y holder) int { return cmp.Compare(y.bytes, x.bytes) })
	for _, h := range holders {
		if excess <= 0 || h.bytes < leastRelief {
			break
		}
		excess -= h.bytes
		closed = true
		r.closed[h.conn] = closedHolder{bytes: h.bytes}
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

// returning is how many bytes are still to come back from connections that were closed,
// of which those that are among the holders have not ended.
func (r *relief) returning(holders []holder) (bytes int64) {
	left := make(map[*Conn]closedHolder, len(r.closed))
	for _, h := range holders {
		if was, is := r.closed[h.conn]; is && was.looks < reliefReturn {
			was.looks++
			left[h.conn] = was
			bytes += was.bytes
		}
	}
	r.closed = left
	return bytes
}

// grows says whether the connection's unfinished packet is still coming in. What the
// reader doesn't read, because it works or waits for memory, the client can't send.
func (r *relief) grows(c *Conn) bool {
	heard := c.heard.And(^heardRelief)&heardRelief != 0
	if heard || c.tr.AwaitsMemory() || readerState(c.reads.Load()) != readerListens {
		delete(r.quiet, c)
		return true
	}
	r.quiet[c]++
	return r.quiet[c] < reliefQuiet
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
	b.groupsMu.Lock()
	groups := slices.Collect(maps.Values(b.groups))
	b.groupsMu.Unlock()
	for _, g := range groups {
		g.mu.Lock()
		g.evict()
		g.mu.Unlock()
	}
}
