package session

import (
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Group is a shared subscription, as the sessions of its members see it (package share).
// No session's lock may be held during a call, but of Requeue, HasMembers and NoteRejects.
type Group interface {
	// Dispatch passes on what waits, as long as a member takes it.
	Dispatch(t *Turn)
	// TakeBack collects what a member that left, or lost its connection, was not sent, and
	// gives it to the others.
	TakeBack(t *Turn, sub *Subscription)
	// Requeue puts messages, whose references it takes over, before all that wait.
	Requeue(t *Turn, messages ...*message.Message)
	// Committed says that the row of a message that waits is in the batch.
	Committed(t *Turn, seq uint64, batch journal.Seq)
	// Withdraw takes out a message again whose row is in no batch.
	Withdraw(t *Turn, seq uint64)
	// HasMembers says whether there is a member left for messages that are handed back.
	HasMembers() bool
	// NoteRejects tells whether the member's client has chosen that publishes be refused when its
	// queue is full.
	NoteRejects(sub *Subscription, rejects bool)
}

// A member takes a group's messages only so far ahead of what it has been sent: those in its
// queue stay in memory, and can't go to another member quickly. When memory is tight, more
// of them stay in the backlog, which is on disk.
const (
	sharedAhead           = 128
	sharedAheadBytes      = 16 << 20 // what it hasn't acknowledged included
	sharedAheadBytesTight = 64 << 10
)

// HasRoom says whether the session can be sent more messages of the shared subscription
// now: its client is connected and takes them. If the queue is full the session will ask
// the group for more when it has room again.
func (s *Session) HasRoom(t *Turn, sub *Subscription) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.takes(t, sub, sub.QoS)
}

// Offer delivers the message if the client is connected and the session has room. Otherwise
// it returns false, and the group may offer the message to another member.
func (s *Session) Offer(t *Turn, sub *Subscription, o *message.Outgoing) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	qos := min(o.QoS, sub.QoS)
	if !s.takesAs(t, sub, qos) {
		return false
	}
	s.Deliver(t, sub, o, qos, o.Retain && sub.RetainAsPublished)
	return true
}

// takesAs is takes of a message that is delivered next: its Subscription Identifier is that
// of the shared subscription. s.Mu is held.
func (s *Session) takesAs(t *Turn, sub *Subscription, qos byte) bool {
	if !s.takes(t, sub, qos) {
		return false
	}
	t.SubIDs = t.SubIDs[:0]
	if sub.ID != 0 {
		t.SubIDs = append(t.SubIDs, sub.ID)
	}
	return true
}

// takes says whether the session takes a message of the shared subscription now; s.Mu is
// held.
func (s *Session) takes(t *Turn, sub *Subscription, qos byte) bool {
	if s.Peer == nil || sub.Gone {
		return false
	}
	if qos > 0 && (s.full(t, &s.Routed) || !s.sharedHasRoom()) {
		s.passedOver = true
		return false
	}
	return true
}

// sharedHasRoom says whether the session may take a message more of a shared
// subscription; s.Mu is held.
func (s *Session) sharedHasRoom() bool {
	q := &s.Routed
	most := int64(sharedAheadBytes)
	if s.Env.Memory.Tight() {
		most = sharedAheadBytesTight
	}
	return !q.Long() && q.Waiting() < sharedAhead && q.InMemory < most
}

// HandBack takes out of the queue what came by the shared subscription and was not sent, and
// gives the messages with a reference each. If the client won't come back, or others are
// there now, it also takes what was sent at QoS 1 and isn't acknowledged. What was sent at
// QoS 2 no other member may get [MQTT-4.8.2-5].
func (s *Session) HandBack(t *Turn, sub *Subscription, others bool) (messages []*message.Message) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	var back []*queue.Slot
	s.Routed.Each(func(it *queue.Slot) {
		if it.Share != sub.Share || it.Message == nil || it.Batch == queue.Unsaved {
			return
		}
		unsent := it.State == queue.Pending && !it.Dup
		unacknowledged := it.State <= queue.Sent && it.QoS == 1 && s.Peer == nil && (others || s.Ended)
		if unsent || unacknowledged {
			back = append(back, it)
		}
	})
	slices.SortFunc(back, queue.BySeq)
	for _, it := range back {
		messages = append(messages, s.handBack(t, it))
	}
	s.Routed.Trim()
	return messages
}

// handBack takes a slot out of the routed queue and gives its message, with a reference. The
// turn's next commit deletes its rows, in the batch that has the message elsewhere. The
// caller calls Trim. s.Mu is held.
func (s *Session) handBack(t *Turn, it *queue.Slot) *message.Message {
	m := it.Message
	m.Keep()
	if it.Saved {
		t.Deletes = append(t.Deletes, rows.QueueKey(s.SID, it.Seq))
	}
	if it.Number != 0 {
		if s.Env.Payloads.Drop(it.Number) {
			t.Deletes = append(t.Deletes, rows.PayloadKey(it.Number))
		}
		it.Number = 0
	}
	s.Remove(&s.Routed, it)
	return m
}

// DispatchTo goes on with the backlogs that found the session full, when it has
// room again. No lock is held.
func (e *Env) DispatchTo(t *Turn, s *Session) {
	var shared []*Subscription
	s.Mu.Lock()
	if s.passedOver && !s.full(t, &s.Routed) && s.sharedHasRoom() {
		s.passedOver = false
		shared = s.SharedSubscriptions()
	}
	s.Mu.Unlock()
	for _, sub := range shared {
		sub.Group.Dispatch(t)
	}
}

// SharedSubscriptions gives the session's memberships; s.Mu is held.
func (s *Session) SharedSubscriptions() (shared []*Subscription) {
	for _, sub := range s.Subs {
		if sub.Group != nil {
			shared = append(shared, sub)
		}
	}
	return shared
}
