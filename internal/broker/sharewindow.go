package broker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"holdfast/internal/journal"
	"holdfast/internal/memory"
	"holdfast/internal/mqtt"
)

// backlog is what waits in a shared subscription, in the order of sequence numbers:
//
//	head                     middle          tail
//	--|---------------------|---------------|-------------|-->  sequence
//	  what goes next, and    on disk only    what came last,
//	  what was handed back                   until it is on disk
//
// A message of the tail moves to the middle as soon as its row is on disk; the middle
// costs nothing but a count. When the head has been passed on, a goroutine reads the
// next page of the middle.
//
// When memory gets tight, the end of the head goes to the middle, too. Messages that
// were handed back can't: rows of messages that went may still be on disk among
// theirs, so they can't be read back as a range. They keep an entry in the head, and
// are read one by one. There are never more of them than members have taken from here.
//
// All fields are guarded by shareGroup.mu.
type backlog struct {
	head   []waiting
	middle onDisk
	tail   []waiting

	messages int   // of head, middle and tail
	bytes    int64 // of them

	headMessages int    // of head, those in memory
	headBytes    int64  // of them
	goneTo       uint64 // messages from this sequence number on have not been offered to members

	attended  bool // a member was connected when that was last looked at
	loading   bool // a goroutine reads messages back from the disk
	awaiting  bool // Durable will be called, and evicts
	durableTo journal.Seq
}

// waiting is a message in a group's backlog.
type waiting struct {
	message *Message    // with a reference; nil: on disk only
	seq     uint64      // on disk; rising, maybe with gaps
	batch   journal.Seq // that its row is in, once it is saved
	size    uint32      // bytes of the message
	saved   bool        // its row is journaled; before that it must not be passed on
}

// count adds a message to the levels, and charges what it takes in memory.
func (g *shareGroup) count(w *waiting) {
	g.level(1, int64(w.size))
	g.charge(w, 1)
}

func (g *shareGroup) level(messages, bytes int64) {
	g.messages += int(messages)
	g.bytes += bytes
	g.b.stats.Queued.Add(messages)
	g.b.stats.QueuedBytes.Add(bytes)
}

// charge charges the pool of memory with a message that is in memory, or with a sign
// of -1 credits it.
func (g *shareGroup) charge(w *waiting, sign int64) {
	switch m := w.message; {
	case m == nil || m.stamp != 0: // the store of retained messages has it
	case w.size < chargedAlone:
		g.b.memory.Charge(memory.Queues, sign*(slotOverhead+int64(w.size)))
	case sign > 0:
		g.b.charge(m, memory.Queues)
	}
}

// headHolds counts a message of the head as in memory, or with a sign of -1 as not.
func (g *shareGroup) headHolds(w *waiting, sign int64) {
	g.headMessages += int(sign)
	g.headBytes += sign * int64(w.size)
}

// letGo releases a message that is in memory.
func (g *shareGroup) letGo(w *waiting) {
	g.charge(w, -1)
	w.message.release()
	w.message = nil
}

// remove takes a message out of the head. Its row goes with the turn's next commit.
func (g *shareGroup) remove(t *Turn, i int) {
	w := &g.head[i]
	t.deletes = append(t.deletes, queueKey(g.gid, w.seq))
	g.goneTo = max(g.goneTo, w.seq+1)
	g.level(-1, -int64(w.size))
	if w.message != nil {
		g.headHolds(w, -1)
		g.letGo(w)
	}
	if i == 0 {
		*w = waiting{}
		g.head = g.head[1:]
	} else {
		g.head = slices.Delete(g.head, i, i+1)
	}
}

// clear lets go of everything.
func (g *shareGroup) clear() {
	for _, part := range [][]waiting{g.head, g.tail} {
		for i := range part {
			if part[i].message != nil {
				g.letGo(&part[i])
			}
		}
	}
	g.level(-int64(g.messages), -g.bytes)
	g.backlog = backlog{}
}

// find gives the entry of a message, if it has one.
func (g *shareGroup) find(seq uint64) *waiting {
	for _, part := range [][]waiting{g.head, g.tail} {
		if i, found := findIn(part, seq); found {
			return &part[i]
		}
	}
	return nil
}

func findIn(part []waiting, seq uint64) (i int, found bool) {
	return slices.BinarySearchFunc(part, seq, func(w waiting, seq uint64) int { return cmp.Compare(w.seq, seq) })
}

// join makes the tail the head, when nothing is left before it.
func (g *shareGroup) join() {
	if len(g.head) > 0 || g.middle.count > 0 || len(g.tail) == 0 {
		return
	}
	g.head, g.tail = g.tail, nil
	for i := range g.head {
		g.headHolds(&g.head[i], 1)
	}
}

// window gives how much of the head may be in memory, as Session.window does.
func (g *shareGroup) window() (messages int, bytes int64) {
	switch {
	case g.b.memory.Tight():
		return 1, 0
	case !g.attended:
		return awayWindowMessages, awayWindowBytes
	}
	return windowMessages, windowBytes
}

// headHasRoom says whether a message that comes may stay in the head.
func (g *shareGroup) headHasRoom() bool {
	messages, bytes := g.window()
	return g.headMessages < messages && g.headBytes < bytes
}

// evict lets go of messages that needn't be in memory and are on disk.
func (g *shareGroup) evict() {
	if g.ended || g.loading {
		return
	}
	g.join()
	for len(g.tail) > 0 && g.evictable(&g.tail[0]) {
		w := &g.tail[0]
		g.letGo(w)
		g.middle.add(w.seq, int64(w.size))
		g.tail = g.tail[1:]
	}
	if len(g.tail) == 0 {
		g.tail = nil
	}
	messages, bytes := g.window()
	for i := len(g.head) - 1; i >= 0 && (g.headMessages > messages || g.headBytes > bytes); i-- {
		w := &g.head[i]
		if w.message != nil {
			if !g.evictable(w) {
				continue
			}
			g.headHolds(w, -1)
			g.letGo(w)
		}
		if i == len(g.head)-1 && w.seq >= g.goneTo {
			g.middle.addBefore(w.seq, int64(w.size))
			g.head = g.head[:i]
		}
	}
}

// evictable says whether a message is on disk. If it soon will be, Durable is called.
func (g *shareGroup) evictable(w *waiting) bool {
	if !w.saved {
		return false
	}
	if w.batch <= g.durableTo || w.batch <= g.b.journal.Complete() {
		return true
	}
	if !g.awaiting {
		g.awaiting = g.b.journal.Await(w.batch, g)
		return !g.awaiting
	}
	return false
}

// Durable implements journal.Waiter: what is on disk needn't be in memory.
func (g *shareGroup) Durable(batch journal.Seq) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.awaiting = false
	g.durableTo = batch // although it isn't complete before its callbacks have run
	g.evict()
}

// lacks says whether the first message is on disk only, and no goroutine reads it;
// g.mu is held.
func (g *shareGroup) lacks() bool {
	if g.ended || g.loading {
		return false
	}
	g.join()
	if len(g.head) > 0 {
		return g.head[0].saved && g.head[0].message == nil
	}
	return g.middle.count > 0
}

// mayLoad says whether the caller is to read messages back from the disk: a member
// would take them, or the oldest are to be dropped, and no other goroutine does it.
func (g *shareGroup) mayLoad(t *Turn) bool {
	taken := g.anyWithRoom(t)
	g.mu.Lock()
	defer g.mu.Unlock()
	dropped := g.b.limits.QueueFull == DropOldest && g.overfull()
	begin := g.lacks() && (taken || dropped)
	g.loading = g.loading || begin
	return begin
}

// loadInBackground reads the next page on a goroutine of its own.
func (g *shareGroup) loadInBackground() {
	if !g.b.background(func(t *Turn) {
		if g.loadMessages(t) {
			g.dispatch(t)
		}
	}) {
		g.loaded() // the server stops
	}
}

// anyWithRoom says whether a connected member has room. One that has none goes on
// with the backlog when it has some again.
func (g *shareGroup) anyWithRoom(t *Turn) bool {
	has := func(m *subscription) bool {
		s := m.session
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.conn == nil || m.gone {
			return false
		}
		if m.qos > 0 && (s.full(t, &s.routed) || !s.sharedHasRoom()) {
			s.passedOver = true
			return false
		}
		return true
	}
	return slices.ContainsFunc(*g.members.Load(), has)
}

// loaded notes that no goroutine reads messages any more.
func (g *shareGroup) loaded() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.loading = false
	g.evict()
}

// loadMessages reads the next page of the backlog, after mayLoad, and says whether it
// could.
func (g *shareGroup) loadMessages(t *Turn) bool {
	p, any := g.toLoad()
	if !any {
		g.loaded()
		return true
	}
	found, whole, err := g.b.readPage(&p)
	if errors.Is(err, journal.ErrClosed) {
		g.loaded() // the server stops; no client misses anything
		return false
	}
	if err != nil {
		g.notLoaded(err)
		return false
	}
	filled := g.fill(t, &p, found, whole)
	g.b.commit(t, nil)
	return filled
}

// toLoad says which part of the backlog is to be read next, if any: the first of the
// head that are on disk only, or else what follows the head.
func (g *shareGroup) toLoad() (p page, any bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p = page{sid: g.gid, from: g.middle.from, to: g.middle.to, messages: pageMessages, bytes: pageBytes}
	if g.b.memory.Tight() {
		p.messages, p.bytes = awayWindowMessages, awayWindowBytes
	}
	bytes := int64(0)
	for i := range g.head {
		if bytes >= p.bytes || len(p.strays) == p.messages {
			break
		}
		if w := &g.head[i]; w.message == nil {
			p.strays = append(p.strays, w.seq)
			bytes += int64(w.size)
		}
	}
	return p, !g.ended && (len(p.strays) > 0 || g.middle.count > 0)
}

// notLoaded closes the connections of the members of a group whose backlog could not
// be read for the moment: its messages stay.
func (g *shareGroup) notLoaded(err error) {
	g.loaded()
	g.b.log.Error("cannot read the backlog of a shared subscription", "subscription", g.key, "error", err)
	for _, m := range *g.members.Load() {
		m.session.mu.Lock()
		c := m.session.conn
		m.session.mu.Unlock()
		if c != nil {
			c.Disconnect(mqtt.UnspecifiedError, "the backlog of a shared subscription could not be read")
		}
	}
}

// fill puts loaded messages where they belong. A message that is missing, or that
// makes no sense, ends the sessions of all members: a hole must not be silent. It says
// whether there was none.
func (g *shareGroup) fill(t *Turn, p *page, found []loaded, whole bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer releaseLoaded(found)
	g.loading = false
	if g.ended {
		return false
	}
	if hole := g.fillIn(p, found, whole); hole != "" {
		g.b.log.Error("ending the sessions of a shared subscription because its backlog on disk has a hole", "subscription", g.key, "problem", hole)
		for _, m := range *g.members.Load() {
			t.ending = append(t.ending, m.session)
		}
		return false
	}
	g.shed(t)
	return true
}

// fillIn takes messages over from found. hole says what is missing.
func (g *shareGroup) fillIn(p *page, found []loaded, whole bool) (hole string) {
	for i := range found {
		l := &found[i]
		if l.err != nil {
			return fmt.Sprintf("message %d: %v", l.seq, l.err)
		}
		var w *waiting
		if len(p.strays) == 0 {
			g.head = append(g.head, waiting{seq: l.seq, size: uint32(l.msg.size()), saved: true})
			w = &g.head[len(g.head)-1]
			g.middle.count--
			g.middle.bytes -= int64(w.size)
			g.middle.from = l.seq + 1
		} else if at, there := findIn(g.head, l.seq); there && g.head[at].message == nil {
			w = &g.head[at]
		} else {
			continue // it was dropped meanwhile
		}
		w.message, l.msg = l.msg, nil
		g.charge(w, 1)
		g.headHolds(w, 1)
	}
	for _, seq := range p.strays {
		if at, there := findIn(g.head, seq); there && g.head[at].message == nil {
			return fmt.Sprintf("message %d is missing", seq)
		}
	}
	if len(p.strays) == 0 && whole && g.middle.count != 0 {
		return fmt.Sprintf("%d messages are missing", g.middle.count)
	}
	return ""
}
