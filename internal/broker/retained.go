package broker

import (
	"hash/maphash"
	"slices"
	"sync/atomic"

	"holdfast/internal/lockrank"
	"holdfast/internal/memory"
	"holdfast/internal/mqtt"
	"holdfast/internal/topic"
)

// retainedStore holds the retained message of each topic.
//
// A publish stores and routes under the lock of its topic's stripe, a replay
// reads and enqueues under it: a subscriber never gets an older message after a
// newer one.
type retainedStore struct {
	names     topic.Names[*Message] // messages that aren't pooled
	stripes   [256]lockrank.Mutex[lockrank.TopicStripe]
	seed      maphash.Seed
	stamps    atomic.Uint64 // order in which messages were stored
	count     atomic.Int64  // messages, without the broker's own on $SYS
	bytes     atomic.Int64  // their bytes
	owners    retainedOwners
	deadlines deadlines
	memory    *memory.Pool
}

// counts says whether a retained message counts against the bounds, and is on disk.
func counts(topic []byte) bool { return !ownSys(topic) }

// note counts a message that came, or with a sign of -1 one that went. The lock of its
// topic's stripe is held, or others don't know the store yet.
func (r *retainedStore) note(m *Message, sign int64) {
	if counts(m.topic()) {
		switch {
		case m.expiresAt == 0:
		case sign > 0:
			r.deadlines.add(m)
		default:
			r.deadlines.remove(m)
		}
		r.count.Add(sign)
		r.bytes.Add(sign * m.retainedSize())
		r.owners.add(m.publisher, sign, sign*m.retainedSize())
		r.memory.Charge(memory.Retained, sign*(m.retainedSize()+retainedOverhead))
	}
}

// retainedOverhead is about what a retained message takes of memory besides its
// bytes: the Message and its places in the index of names and among the deadlines.
const retainedOverhead = 200

// retainedSize is what the message counts as in the bound of retained messages.
func (m *Message) retainedSize() int64 { return m.size() + int64(len(m.publisher)) }

func (r *retainedStore) stripe(topic []byte) *lockrank.Mutex[lockrank.TopicStripe] {
	return &r.stripes[maphash.Bytes(r.seed, topic)%uint64(len(r.stripes))]
}

// store keeps the message, or with an empty payload deletes what is kept
// [MQTT-3.3.1-5, 3.3.1-6]. It says false at the bound. The stripe's lock is held.
func (b *Broker) store(o *outgoing) bool {
	r := &b.retained
	if len(o.payload) == 0 {
		if old, had := r.names.Delete(o.topic); had {
			r.note(old, -1)
		}
		return true
	}
	old, had := r.names.Get(o.topic)
	size := int64(len(o.topic) + len(o.rawProps) + len(o.payload) + len(o.publisher))
	if counts(o.topic) && (!b.mayRetain(o.publisher, old, size) || !b.memory.Fits(memory.Retained, size)) {
		return false
	}
	m := o.kept()
	m.stamp = r.stamps.Add(1)
	o.stamp = m.stamp
	r.names.Put(string(o.topic), m)
	r.note(m, 1)
	if had {
		r.note(old, -1)
	}
	return true
}

// kept gives the unpooled Message of the contents, which further calls of
// message share.
func (o *outgoing) kept() *Message {
	if o.msg == nil || o.msg.fromPooled {
		props := o.props
		if !o.propsReady {
			props = mqtt.AppendForwardProps(nil, o.rawProps)
		}
		m := newKeptMessage(len(o.topic) + len(props) + len(o.payload))
		o.fill(m, props)
		// What these were views of may be the message that is let go.
		o.topic, o.props, o.payload, o.propsReady = m.topic(), m.props(), m.payload(), true
		o.done()
		o.msg = m
	}
	return o.msg
}

// replay is the way of the retained messages to one new subscription: a page at
// a time, when the session's queue has room. For a session on disk what is still
// owed is on disk, too: a row that moves on in the batch of each page's messages.
type replay struct {
	sub    *subscription
	filter string
	since  uint64   // messages stored later than this are routed to it anyway
	routed []uint64 // stamps of earlier ones that were routed to it all the same: at most one for each stripe
	after  string   // cursor: topics up to this one are done
	again  uint64   // how often it begins anew: the SUBSCRIBE named the filter so many times more
	fresh  bool     // its SUBSCRIBE is still being handled
	key    []byte   // of its row; nil: it has none
	work   int      // what it has done, in units of pace.go
}

// replayAhead is how many messages a replay keeps in the queue at the most.
const replayAhead = 64

// newReplay begins a replay to a subscription, once it is in the index of filters;
// its session's lock is held.
//
// A publish that has been stored by then and not yet matched will be routed to
// it: deliverTo notes that, so that it isn't sent twice.
func (b *Broker) newReplay(sub *subscription) *replay {
	sub.replay = &replay{sub: sub, filter: sub.filter, since: b.retained.stamps.Load(), fresh: true}
	return sub.replay
}

// owed gives the replays that have something to send. What is retained from now on
// is routed to their subscriptions anyway.
func (b *Broker) owed(s *Session, replays []*replay) []*replay {
	return slices.DeleteFunc(replays, func(r *replay) bool {
		found := false
		b.retained.names.Match(r.filter, "", 1, func(string, *Message) { found = true })
		if !found {
			s.mu.Lock()
			r.over()
			s.mu.Unlock()
		}
		return !found
	})
}

// startReplays adds replays to the session and goes on with them.
func (b *Broker) startReplays(t *Turn, s *Session, replays []*replay) {
	if len(replays) == 0 {
		return
	}
	s.mu.Lock()
	for _, r := range replays {
		r.fresh = false
	}
	s.replays = append(s.replays, replays...)
	if len(s.replays) > 2*b.limits.MaxSubscriptions { // a client may subscribe again and again, and take nothing
		s.replays = slices.DeleteFunc(s.replays, func(r *replay) bool {
			if r.stale() && r.key != nil {
				t.deletes = append(t.deletes, r.key)
			}
			return r.stale()
		})
	}
	s.mu.Unlock()
	b.commit(t, nil)
	b.goOn(t, s)
}

// over notes that the replay has come to its end. Its session's lock is held.
func (r *replay) over() {
	if r.sub.replay == r {
		r.sub.replay = nil
	}
}

// stale says whether the subscription is gone, or has been made again since,
// which begins another replay. Its session's lock is held.
func (r *replay) stale() bool { return r.sub.gone || r.sub.replay != r }

// goOn feeds a session from what isn't in its queue in memory: messages that are
// on disk only, backlogs of shared subscriptions that found it full, retained
// messages for new subscriptions. Called with no lock
// held whenever the queue has got shorter; one goroutine does each at a time.
func (b *Broker) goOn(t *Turn, s *Session) {
	b.loadMessages(t, s)
	b.dispatchTo(t, s)
	if t.hurried {
		if s.mayReplay() {
			b.background(func(t *Turn) { b.goOn(t, s) })
		}
		return
	}
	owed := 0 // by the replay, each of whose goroutines goes on where the one before had to wait for the client
	for {
		t.pace(owed)
		s.mu.Lock()
		if s.replaying || len(s.replays) == 0 || s.conn == nil || !s.roomToReplay() {
			s.mu.Unlock()
			return
		}
		s.replaying = true
		r := s.replays[0]
		r.work = min(r.work+replayAhead, maxOwed)
		owed = r.work
		s.mu.Unlock()

		t.work += replayAhead
		began := r.after
		more := b.replayPage(t, s, r)
		b.commit(t, s.replayed(t, r, began, &more))

		s.mu.Lock()
		s.replaying = false
		if !more && len(s.replays) > 0 && s.replays[0] == r {
			s.replays = s.replays[1:]
			r.over()
		}
		s.mu.Unlock()
	}
}

// replayed gives what becomes of the replay's row, after a page of it: it goes into
// the batch that has the page's messages, so that after a crash the replay goes on
// behind them. A replay that is to begin anew has more to come.
func (s *Session) replayed(t *Turn, r *replay, began string, more *bool) *alongside {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !*more && r.again > 0 && !r.stale() {
		r.again--
		r.after = ""
		*more = true
	}
	switch {
	case r.key == nil || s.ended:
	case !*more:
		t.deletes = append(t.deletes, r.key)
	case r.after != began:
		return &alongside{owed: r.key, owedRow: r.row()}
	}
	return nil
}

// mayReplay says whether there is something to replay now, that nobody is at.
func (s *Session) mayReplay() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.replaying && len(s.replays) > 0 && s.conn != nil && s.roomToReplay()
}

func (s *Session) roomToReplay() bool {
	return s.routed.waiting()+s.routed.middle.count < replayAhead && !s.conn.tr.Full()
}

// replayPage enqueues the next retained messages of r.
func (b *Broker) replayPage(t *Turn, s *Session, r *replay) (more bool) {
	names := make([]string, 0, replayAhead)
	next, more := b.retained.names.Match(r.filter, r.after, replayAhead, func(name string, _ *Message) {
		names = append(names, name)
	})
	for _, name := range names {
		if s.outputFull() {
			return true // r.after is where to go on
		}
		if !b.replayOne(t, s, r, []byte(name)) {
			return false
		}
		r.after = name
	}
	r.after = next
	return more
}

func (s *Session) outputFull() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn == nil || s.conn.tr.Full()
}

// replayOne enqueues the retained message of one topic, unless it was stored
// after the subscription was made and has thus been routed to it. It says false
// if nobody wants the rest.
func (b *Broker) replayOne(t *Turn, s *Session, r *replay, name []byte) bool {
	stripe := b.retained.stripe(name)
	stripe.Lock()
	defer stripe.Unlock()
	m, found := b.retained.names.Get(name)
	if !found || m.stamp > r.since {
		return true
	}
	if m.expiresAt != 0 && m.expiresAt <= b.Now() {
		b.removeExpired(m)
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.stale() || s.ended {
		return false
	}
	if slices.Contains(r.routed, m.stamp) || r.sub.noLocal && m.publisher == s.id { // [MQTT-3.8.3-3]
		return true
	}
	m.keep()
	o := m.routed()
	defer o.done()
	t.subIDs = t.subIDs[:0]
	if r.sub.id != 0 {
		t.subIDs = append(t.subIDs, r.sub.id)
	}
	s.deliver(t, r.sub, &o, min(m.qos, r.sub.qos), true)
	return true
}
