package broker

import (
	"sync/atomic"

	"holdfast/internal/failstop"
	"holdfast/internal/journal"
	"holdfast/internal/lockrank"
)

// save is a message that routing has put into a queue and that belongs on disk.
type save struct {
	session *Session    // nil: the group's
	group   *shareGroup // nil: the session's
	sid     uint64      // as it was then; a session that ended meanwhile has none
	seq     uint64
	it      slot // with a reference to its message
}

// alongside is what goes to disk in the same batch as a publish's messages.
type alongside struct {
	received uint64 // sid of the session from which a QoS 2 publish is under way; 0: none
	id       uint16
	retained *Message // stored under its topic; one without payload deletes
	will     uint64   // number of the row of the will that this was; 0: it has none
	owed     []byte   // key of a replay's row; nil: none
	owedRow  []byte

	mute       bool // the publisher can't be told that a message isn't retained
	unretained bool // by publishAny: the message was to be retained, and there was no room
}

// How a publish gets to disk.
//
// Routing puts a message into each matching queue, under one session's lock
// after the other. Which queues these were is only known at the end, and all
// their rows must be in one batch, together with what says that a QoS 2 publish
// has been received: if one could be there without the other, the publish would
// be lost, or done twice, after a crash. So routing only notes what is to be
// saved and marks the slots as unsaved, which keeps them from being sent; commit
// then writes all of it at once, and goes round the sessions a second time to
// send. A message that goes to several queues is written once, and referred to.

// commit journals what this turn has put into queues, and what goes alongside. It
// gives the batch to wait for, 0 if there is nothing. No lock of a session is held.
func (b *Broker) commit(t *Turn, with *alongside) journal.Seq {
	if len(t.saves) == 0 && len(t.deletes) == 0 && (with == nil || with.empty()) {
		return 0
	}
	wall := b.wall()
	number := uint64(0)
	if len(t.saves) > 1 && sameMessage(t.saves) {
		number = b.payloads.add(len(t.saves), int(t.saves[0].it.msg.size()))
		t.row = appendMessage(append(t.row[:0], rowVersion), t.saves[0].it.msg, wall)
	}
	a := b.journal.Begin()
	if number != 0 {
		a.Set(numberedKey(payloadPrefix, number), t.row)
	}
	for i := range t.saves {
		sv := &t.saves[i]
		t.row = appendQueueRow(t.row[:0], &sv.it, 0, number, wall)
		t.key = appendQueueKey(t.key[:0], sv.sid, sv.seq)
		a.Set(t.key, t.row)
	}
	for _, key := range t.deletes {
		a.Delete(key)
	}
	if with != nil {
		t.row = with.append(a, t.row, wall)
	}
	batch := a.End(nil)
	t.deletes = t.deletes[:0]

	saves := t.saves
	t.saves = nil
	for i := range saves {
		sv := &saves[i]
		if sv.group != nil {
			sv.group.saved(t, sv.seq, batch)
		} else {
			sv.session.saved(t, sv, batch, number)
		}
		sv.it.msg.release()
		*sv = save{}
	}
	if t.saves == nil {
		t.saves = saves[:0]
	}
	// What came too late for its session went back to a group, or from the disk.
	return max(batch, b.commit(t, nil))
}

func sameMessage(saves []save) bool {
	for i := range saves {
		if saves[i].it.msg != saves[0].it.msg || saves[i].group != nil {
			return false
		}
	}
	return true
}

func (w *alongside) empty() bool {
	return w.received == 0 && w.retained == nil && w.will == 0 && w.owed == nil
}

func (w *alongside) append(a journal.Append, row []byte, wall int64) []byte {
	if w.received != 0 {
		a.Set(receivedKey(w.received, w.id), []byte{rowVersion})
	}
	if m := w.retained; m != nil {
		key := topicKey(retainedPrefix, m.topic())
		if len(m.payload()) == 0 {
			a.Delete(key)
		} else {
			row = appendRetainedRow(row[:0], m, wall)
			a.Set(key, row)
		}
	}
	if w.will != 0 {
		a.Delete(numberedKey(willPrefix, w.will))
	}
	if w.owed != nil {
		a.Set(w.owed, w.owedRow)
	}
	return row
}

// saved notes that a slot's row is in the batch, and sends what can be sent. If
// the session has gone meanwhile, a message of a shared subscription goes back to
// its group: takeBack has passed it over.
func (s *Session) saved(t *Turn, sv *save, batch journal.Seq, number uint64) {
	var group *shareGroup
	if sv.it.sub != nil {
		group = sv.it.sub.group
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &s.routed
	it := q.slotAt(sv.seq)
	if it == nil || it.batch != unsaved || s.sid != sv.sid {
		t.deletes = append(t.deletes, queueKey(sv.sid, sv.seq)) // the session has ended
		if number != 0 && s.b.payloads.drop(number) {
			t.deletes = append(t.deletes, numberedKey(payloadPrefix, number))
		}
		if group != nil {
			sv.it.msg.keep()
			group.requeue(t, sv.it.msg)
		}
		return
	}
	it.batch, it.saved, it.number = batch, true, number
	if group != nil && s.conn == nil && group.hasMembers() {
		group.requeue(t, s.handBack(t, it))
		q.trim()
		return
	}
	s.pump(t)
	s.evict()
	if s.conn != nil {
		t.touch(s.conn)
	}
}

// payloads counts how many queues refer to each p row.
type payloads struct {
	mu   lockrank.Mutex[lockrank.Payloads]
	last uint64              // number given last
	refs map[uint64]referred // by number

	spared atomic.Int64 // bytes of messages that are on disk once and not for each queue; changed under mu
}

type referred struct {
	refs int32
	size uint32 // bytes of the message
}

// add gives the number of a message that is in several queues.
func (p *payloads) add(refs, size int) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	p.refs[p.last] = referred{int32(refs), uint32(size)}
	p.spared.Add(int64(refs-1) * int64(size))
	return p.last
}

// refer adds a reference to a message that was found on disk.
func (p *payloads) refer(number uint64, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.refs[number]
	if r.refs > 0 {
		p.spared.Add(int64(size))
	}
	p.refs[number] = referred{r.refs + 1, uint32(size)}
}

// drop takes a reference away, and says whether the row is to be deleted: in the
// batch in which the referring row goes, or a later one.
func (p *payloads) drop(number uint64) (gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.refs[number]
	if r.refs--; r.refs > 0 {
		p.refs[number] = r
		p.spared.Add(-int64(r.size))
		return false
	}
	delete(p.refs, number)
	return true
}

// release takes a reference away whose row is gone, or going; the last one
// deletes the row referred to.
func (p *payloads) release(j *journal.Journal, number uint64) {
	if p.drop(number) {
		a := j.Begin()
		a.Delete(numberedKey(payloadPrefix, number))
		a.End(nil)
	}
}

// wall is what to add to the broker's clock to get the wall clock, in ms.
//
// It stays what it was at the start: the expiry of a message that was published in this
// run must not move when the wall clock is stepped, wherever the message is meanwhile.
func (b *Broker) wall() int64 { return b.epoch }

// background does something on a goroutine of its own, which the broker's end waits
// for. It says false if that has come.
func (b *Broker) background(do func(t *Turn)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.readers.Go(func() {
		defer failstop.End(b.log, "work for a connection")
		b.work(do)
	})
	return true
}
