package session

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// save is a message that routing has put into a queue and that belongs on disk.
type save struct {
	Session *Session // nil: the queue is the group's backlog
	group   Group    // whose backlog it is in, or by which it came to Session; nil: by none
	SID     uint64   // as it was then; a session that ended meanwhile has none. 0: of a Held, for a session that ends with its connection, so there is no row
	Seq     uint64
	Slot    queue.Slot // with a reference to its message
	number  uint64     // of the row that has the message, if several queues refer to it; 0: the slot's own row has it
	held    bool       // it belongs to a Held
}

// How a publish gets to disk.
//
// Routing puts a message into each matching queue, under one session's lock after the other.
// Which queues these were is only known at the end, and all their rows must be in one batch,
// together with what says that a QoS 2 publish has been received: if one could be there
// without the other, the publish would be lost, or done twice, after a crash. So routing
// only notes what is to be saved and marks the slots as unsaved, which keeps them from being
// sent; Commit then writes all of it at once, and visits the sessions a second time to send.
// A message that goes to several queues is written once, and their rows refer to it.

// Commit journals what this turn has put into queues, and the rows of with (nil: none),
// in one batch. It returns the batch to wait for, 0 if there is nothing to journal. No
// lock of a session is held.
func (e *Env) Commit(t *Turn, with *message.PublishRows) journal.Seq {
	if len(t.Saves) == 0 && len(t.Deletes) == 0 && (with == nil || with.Empty()) {
		return 0
	}
	e.number(t.Saves)
	a := e.Journal.Begin()
	t.appendSaves(a, t.Saves)
	for _, key := range t.Deletes {
		a.Delete(key)
	}
	if with != nil {
		t.row = with.Append(a, t.row, e.Wall())
	}
	batch := a.End(nil)
	t.Deletes = t.Deletes[:0]

	saves := t.Saves
	t.Saves = nil
	t.saved(saves, batch)
	if t.Saves == nil {
		t.Saves = saves[:0]
	}
	// A message whose session has ended meanwhile went back to its group, or its row is
	// still to be deleted: both are journaled in another batch.
	return max(batch, e.Commit(t, nil))
}

// number gives a number to each message that goes to several sessions' queues, so that it is
// stored once. Its saves follow each other. In a backlog it has a row of its own.
func (e *Env) number(saves []save) {
	for i := 0; i < len(saves); {
		m, n := saves[i].Slot.Message, 0
		for i+n < len(saves) && saves[i+n].Slot.Message == m && saves[i+n].Session != nil {
			n++
		}
		if n > 1 {
			number := e.Payloads.Add(n, int(m.Size()))
			for k := range n {
				saves[i+k].number = number
			}
		}
		i += max(n, 1)
	}
}

// appendSaves appends the rows of what number has seen.
func (t *Turn) appendSaves(a journal.Append, saves []save) {
	wall, number := t.env.Wall(), uint64(0)
	for i := range saves {
		sv := &saves[i]
		if sv.number != 0 && sv.number != number {
			number = sv.number
			t.row = sv.Slot.Message.AppendRow(rows.AppendPayload(t.row[:0]), wall)
			a.Set(rows.PayloadKey(number), t.row)
		}
		t.row = sv.Slot.AppendRow(t.row[:0], 0, sv.number, wall)
		t.key = rows.AppendQueueKey(t.key[:0], sv.SID, sv.Seq)
		a.Set(t.key, t.row)
	}
}

// saved notes that the rows are in the batch, sends what can be sent, and lets go of the
// saves.
func (t *Turn) saved(saves []save, batch journal.Seq) {
	for i := range saves {
		sv := &saves[i]
		if sv.Session == nil {
			sv.group.Committed(t, sv.Seq, batch)
		} else {
			sv.Session.saved(t, sv, batch)
		}
		sv.Slot.Message.Release()
		*sv = save{}
	}
}

// SaveBacklog notes that a message of a shared subscription's backlog is to be journaled
// with the turn's next commit. sid is the backlog's number.
func (t *Turn) SaveBacklog(g Group, sid, seq uint64, m *message.Message) {
	m.Keep()
	t.Saves = append(t.Saves, save{group: g, SID: sid, Seq: seq, Slot: queue.Slot{Message: m, QoS: m.QoS}})
}

// saved notes that a slot's row is in the batch, and sends what can be sent. If
// the session has gone meanwhile, a message of a shared subscription goes back to
// its group: TakeBack has passed it over.
func (s *Session) saved(t *Turn, sv *save, batch journal.Seq) {
	group, number := sv.group, sv.number
	s.Mu.Lock()
	defer s.Mu.Unlock()
	q := &s.Routed
	it := q.SlotAt(sv.Seq)
	if it == nil || it.Batch != queue.Unsaved || s.SID != sv.SID {
		if sv.SID != 0 {
			t.Deletes = append(t.Deletes, rows.QueueKey(sv.SID, sv.Seq)) // the session has ended
		}
		if number != 0 && s.Env.Payloads.Drop(number) {
			t.Deletes = append(t.Deletes, rows.PayloadKey(number))
		}
		if group != nil {
			sv.Slot.Message.Keep()
			group.Requeue(t, sv.Slot.Message)
		}
		return
	}
	it.Batch, it.Saved, it.Number = batch, sv.SID != 0, number
	if group != nil && s.Peer == nil && group.HasMembers() {
		group.Requeue(t, s.handBack(t, it))
		q.Trim()
		return
	}
	if sv.held { // before, it could have been withdrawn
		s.warn(t, q)
		s.shed(t)
	}
	s.Pump(t)
	s.Evict()
	if s.Peer != nil {
		t.MarkDirty(s.Peer)
	}
}
