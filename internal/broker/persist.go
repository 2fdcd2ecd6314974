package broker

import (
	"encoding/binary"
	"errors"

	"holdfast/internal/journal"
	"holdfast/internal/memory"
)

// On disk a session that outlives its connection is
//
//	s|{client ID}        → version 2, sid (8 bytes), expiry interval in seconds (4),
//	                       since when the client is away, wall clock in ms or 0 (8),
//	                       sequence number before which messages may have been sent (8),
//	                       what the client asked for when its queue is full (1)
//	u|{sid}|{filter}     → version 1, options (1), subscription identifier (4)
//
// with big-endian numbers. The sid is new for each session, so that what an
// earlier session of the client left can't come back. Rows whose sid belongs to
// no session are what a crash left of one that ended; load deletes them.
const (
	sessionPrefix      = 's'
	subscriptionPrefix = 'u'
	rowVersion         = 1

	// sessionRowVersion is that of session rows: in version 1, messages may have been
	// sent that come after the sequence number, as long as the client was connected.
	sessionRowVersion = 2
)

// Options of a subscription row; the lowest two bits are the QoS.
const (
	optionNoLocal           = 1 << 2
	optionRetainAsPublished = 1 << 3
)

func sessionKey(id string) []byte {
	return append([]byte{sessionPrefix, '|'}, id...)
}

func subscriptionKey(sid uint64, filter string) []byte {
	return append(append(numberedKey(subscriptionPrefix, sid), '|'), filter...)
}

// saveSession journals the session, now that its client is connected, with its
// will. s.mu is held. It gives 0 if there is nothing for the disk: of a session that
// ends with its connection only the will is, as a crash doesn't make up for it.
//
// One that has been on disk stays there although it is to end with this
// connection: part of its queue may be nowhere else. After a crash it has
// expired.
func (b *Broker) saveSession(s *Session) journal.Seq {
	if s.sid == 0 {
		if !s.durable() {
			return b.saveWill(s)
		}
		s.sid = b.lastSID.Add(1)
		s.routed.start(0)
	}
	s.mark = s.mayHaveSent() + markAhead
	a := b.journal.Begin()
	a.Set(sessionKey(s.id), s.row(s.mark))
	if s.will != nil {
		s.will.number = s.sid
		a.Set(numberedKey(willPrefix, s.sid), s.will.row())
	} else {
		a.Delete(numberedKey(willPrefix, s.sid))
	}
	s.markBatch = a.End(nil)
	return s.markBatch
}

// saveWill journals the will of a session that isn't on disk, 0: it has none. After a
// crash it is found without a session, and published. s.mu is held.
func (b *Broker) saveWill(s *Session) journal.Seq {
	if s.will == nil {
		return 0
	}
	if s.will.number == 0 {
		s.will.number = b.lastSID.Add(1)
	}
	a := b.journal.Begin()
	a.Set(numberedKey(willPrefix, s.will.number), s.will.row())
	return a.End(nil)
}

// withdrawWill forgets the session's will, which won't be published, and its row if
// the session isn't on disk: otherwise that goes with what saveAway or deleteSession
// journals. s.mu is held.
func (b *Broker) withdrawWill(s *Session) {
	if s.will.number != 0 && s.sid == 0 {
		a := b.journal.Begin()
		a.Delete(numberedKey(willPrefix, s.will.number))
		a.End(nil)
	}
	b.memory.Credit(memory.Sessions, s.will.charged)
	s.will.message.release()
	s.will = nil
}

// saveAway journals that the client has gone, and what becomes of its will; one
// that is being published goes with its publication. s.mu is held.
func (b *Broker) saveAway(s *Session, publishing bool) {
	a := b.journal.Begin()
	a.Set(sessionKey(s.id), s.row(s.mayHaveSent()))
	switch {
	case s.will != nil:
		a.Set(numberedKey(willPrefix, s.sid), s.will.row())
	case !publishing:
		a.Delete(numberedKey(willPrefix, s.sid))
	}
	a.End(nil)
}

// row gives the session's row, which says that messages before sent may have been
// sent.
func (s *Session) row(sent uint64) []byte {
	row := binary.BigEndian.AppendUint64([]byte{sessionRowVersion}, s.sid)
	row = binary.BigEndian.AppendUint32(row, s.expiry)
	row = binary.BigEndian.AppendUint64(row, uint64(s.away))
	row = binary.BigEndian.AppendUint64(row, sent)
	return append(row, s.asked)
}

func (w *will) row() []byte {
	row := binary.BigEndian.AppendUint64([]byte{rowVersion, w.message.qos}, uint64(w.due))
	if w.message.retain {
		row[1] |= rowMessageRetain
	}
	row = binary.BigEndian.AppendUint32(row, w.delay)
	return appendMessage(row, w.message, 0)
}

// deleteSession journals that the session isn't on disk any more; s.mu is held.
func (b *Broker) deleteSession(s *Session, keepWill bool) journal.Seq {
	if s.sid == 0 {
		return 0
	}
	a := b.journal.Begin()
	a.Delete(sessionKey(s.id))
	if !keepWill {
		a.Delete(numberedKey(willPrefix, s.sid))
	}
	for _, prefix := range []byte{subscriptionPrefix, receivedPrefix, owedPrefix} {
		a.DeleteRange(numberedKey(prefix, s.sid), afterNumber(prefix, s.sid))
	}
	// Messages on disk only may be in other queues, too: their rows say so.
	m := s.routed.middle
	a.DeleteRange(numberedKey(queuePrefix, s.sid), queueKey(s.sid, m.from))
	a.DeleteRange(queueKey(s.sid, m.to), afterNumber(queuePrefix, s.sid))
	batch := a.End(nil)
	if m.count > 0 {
		b.deleteLater(s.sid, m)
	}
	s.sid = 0
	return batch
}

// deleteLater deletes messages that are on disk only, of a session or group that
// has ended, once it has seen what they refer to. Until then their rows are what a
// crash would leave.
func (b *Broker) deleteLater(sid uint64, m onDisk) {
	b.background(func(*Turn) {
		from, to := queueKey(sid, m.from), queueKey(sid, m.to)
		var numbers []uint64
		err := b.journal.Iterate(from, to, func(_, value []byte) bool {
			if r, err := decodeQueueRow(value); err == nil && r.number != 0 {
				numbers = append(numbers, r.number)
			}
			return true
		})
		if err != nil {
			if !errors.Is(err, journal.ErrClosed) {
				b.log.Error("cannot read the queue of a session that has ended; it is deleted at the next start", "error", err)
			}
			return
		}
		a := b.journal.Begin()
		a.DeleteRange(from, to)
		a.End(nil)
		for _, n := range numbers {
			b.payloads.release(b.journal, n)
		}
	})
}

func (sub *subscription) row() []byte {
	options := sub.qos
	if sub.noLocal {
		options |= optionNoLocal
	}
	if sub.retainAsPublished {
		options |= optionRetainAsPublished
	}
	return binary.BigEndian.AppendUint32([]byte{rowVersion, options}, sub.id)
}

// saveSubscriptions journals new or changed subscriptions and the retained messages
// that they are owed; 0: nothing to wait for.
func (b *Broker) saveSubscriptions(s *Session, subs []*subscription, replays []*replay) journal.Seq {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sid == 0 || len(subs) == 0 {
		return 0
	}
	a := b.journal.Begin()
	for _, sub := range subs {
		a.Set(subscriptionKey(s.sid, sub.filter), sub.row())
	}
	for _, r := range replays {
		r.key = owedKey(s.sid, b.lastSID.Add(1))
		a.Set(r.key, r.row())
	}
	return a.End(nil)
}

// deleteSubscriptions journals the end of subscriptions; 0: nothing to wait for.
func (b *Broker) deleteSubscriptions(s *Session, subs []*subscription) journal.Seq {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sid == 0 || len(subs) == 0 {
		return 0
	}
	a := b.journal.Begin()
	for _, sub := range subs {
		a.Delete(subscriptionKey(s.sid, sub.filter))
	}
	return a.End(nil)
}

// waitDurable blocks until the journal batch is durable. For readers, where
// something happens once per connection or subscription.
func (b *Broker) waitDurable(seq journal.Seq) {
	done := make(signal)
	if b.journal.Await(seq, done) {
		<-done
	}
}

// signal is a journal waiter for one goroutine that blocks.
type signal chan struct{}

func (s signal) Durable(journal.Seq) { close(s) }
