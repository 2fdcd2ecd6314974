package broker

import (
	"encoding/binary"
	"fmt"

	"holdfast/internal/journal"
)

// On disk a session that outlives its connection is
//
//	s|{client ID}        → version 1, sid (8 bytes), expiry interval in seconds (4)
//	u|{sid}|{filter}     → version 1, options (1), subscription identifier (4)
//
// with big-endian numbers. The sid is new for each session, so that what an
// earlier session of the client left can't come back.
const (
	sessionPrefix      = 's'
	subscriptionPrefix = 'u'
	rowVersion         = 1
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
	key := binary.BigEndian.AppendUint64([]byte{subscriptionPrefix, '|'}, sid)
	key = append(key, '|')
	return append(key, filter...)
}

// saveSession journals what the session's row should be: present if it outlives
// its connection, else absent. s.mu is held. It gives 0 if nothing had to change.
func (b *Broker) saveSession(s *Session) journal.Seq {
	if !s.durable() {
		return b.deleteSession(s)
	}
	fresh := s.sid == 0
	if fresh {
		s.sid = b.lastSID.Add(1)
	}
	value := binary.BigEndian.AppendUint64([]byte{rowVersion}, s.sid)
	value = binary.BigEndian.AppendUint32(value, s.expiry)
	a := b.journal.Begin()
	a.Set(sessionKey(s.id), value)
	if fresh {
		for _, sub := range s.subs {
			a.Set(subscriptionKey(s.sid, sub.filter), sub.row())
		}
	}
	return a.End(nil)
}

// deleteSession journals that the session isn't on disk any more; s.mu is held.
func (b *Broker) deleteSession(s *Session) journal.Seq {
	if s.sid == 0 {
		return 0
	}
	a := b.journal.Begin()
	a.Delete(sessionKey(s.id))
	a.DeleteRange(subscriptionKey(s.sid, ""), append(subscriptionKey(s.sid, "")[:10], '|'+1))
	s.sid = 0
	return a.End(nil)
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

// saveSubscriptions journals new or changed subscriptions; 0: nothing to wait for.
func (b *Broker) saveSubscriptions(s *Session, subs []*subscription) journal.Seq {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sid == 0 || len(subs) == 0 {
		return 0
	}
	a := b.journal.Begin()
	for _, sub := range subs {
		a.Set(subscriptionKey(s.sid, sub.filter), sub.row())
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

// load restores the sessions on disk. Their expiry counts from now.
func (b *Broker) load() error {
	bySID := map[uint64]*Session{}
	var bad error
	err := b.journal.Iterate([]byte{sessionPrefix, '|'}, []byte{sessionPrefix, '|' + 1}, func(key, value []byte) bool {
		if len(value) != 13 || value[0] != rowVersion {
			bad = fmt.Errorf("session %q on disk has an unknown form", key[2:])
			return false
		}
		s := newSession(b, string(key[2:]))
		s.sid = binary.BigEndian.Uint64(value[1:])
		s.expiry = binary.BigEndian.Uint32(value[9:])
		bySID[s.sid] = s
		b.sessions[s.id] = s
		if s.sid > b.lastSID.Load() {
			b.lastSID.Store(s.sid)
		}
		return true
	})
	if err == nil && bad == nil {
		err = b.journal.Iterate([]byte{subscriptionPrefix, '|'}, []byte{subscriptionPrefix, '|' + 1}, func(key, value []byte) bool {
			bad = b.loadSubscription(bySID, key, value)
			return bad == nil
		})
	}
	if err == nil {
		err = bad
	}
	if err != nil {
		return fmt.Errorf("reading sessions: %w", err)
	}
	for _, s := range bySID {
		s.mu.Lock()
		b.scheduleExpiry(s)
		s.mu.Unlock()
	}
	return nil
}

func (b *Broker) loadSubscription(bySID map[uint64]*Session, key, value []byte) error {
	if len(key) < 11 || len(value) != 6 || value[0] != rowVersion {
		return fmt.Errorf("subscription %q on disk has an unknown form", key)
	}
	sid := binary.BigEndian.Uint64(key[2:])
	s := bySID[sid]
	if s == nil {
		return fmt.Errorf("subscription on disk belongs to no session (%d)", sid)
	}
	options := value[1]
	sub := &subscription{
		session: s, filter: string(key[11:]), qos: options & 3,
		noLocal:           options&optionNoLocal != 0,
		retainAsPublished: options&optionRetainAsPublished != 0,
		id:                binary.BigEndian.Uint32(value[2:]),
	}
	s.subs[sub.filter] = sub
	group, rest := splitShare(sub.filter)
	b.insert(sub, group, rest)
	return nil
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

func (s signal) Durable() { close(s) }

// acknowledgeWhenDurable holds the acknowledgement's place until the batch is durable.
func (c *Conn) acknowledgeWhenDurable(t *Turn, a ack, seq journal.Seq) {
	w := &heldAck{c: c}
	w.ticket = c.acks.hold(a)
	if !c.b.journal.Await(seq, w) {
		c.release(t, w.ticket, func(*ack) {})
	}
}

// heldAck releases an acknowledgement that is complete but for its time.
type heldAck struct {
	c      *Conn
	ticket Ticket
}

func (w *heldAck) Durable() {
	t := w.c.b.lockLater()
	defer w.c.b.unlockLater()
	w.c.release(t, w.ticket, func(*ack) {})
}
