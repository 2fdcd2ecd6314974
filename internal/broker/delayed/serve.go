package delayed

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// How timers that are due are published: one goroutine reads a page of them from the disk,
// publishes one after the other, and waits until all of that is durable before it reads the
// next page. So a million that are due at once take no more memory than a page, and the disk
// bounds their rate. Between two of them it takes turns with greedy readers.
const (
	pageTimers = 256
	pageBytes  = 1 << 20 // or one timer that is larger

	// tick is how long after a page the next is read at the earliest: timers that are set one
	// by one with close times do not each cost a look at the disk.
	tick = 20 * time.Millisecond

	// retryMs is how long after a try a timer is due again whose message found no room; twice
	// as long after each further one, up to retryMost.
	retryMs   = 1000
	retryMost = 60_000

	// aheadMs is what an interval may lack when its timer is looked at, without being judged
	// as cut short by a step of the clock.
	aheadMs = 1000

	pauseAfterError = time.Second
	workPerTimer    = 16 // units of the session package's pacing
)

// due is a timer of a page.
type due struct {
	key []byte
	row []byte
}

// Serve publishes timers when they are due, until stop is closed.
func (s *Store) Serve(stop <-chan struct{}) {
	for {
		timer := time.NewTimer(s.look(stop))
		select {
		case <-timer.C:
		case <-s.wake:
			if !sleep(tick, stop) {
				return
			}
		case <-stop:
			return
		}
		timer.Stop()
	}
}

// look publishes a page of the timers that are due, and says after which time to look again, unless a
// timer that is set meanwhile is due before that: then it is tick.
func (s *Store) look(stop <-chan struct{}) time.Duration { return max(tick, s.Round(stop)) }

func sleep(d time.Duration, stop <-chan struct{}) bool {
	select {
	case <-time.After(d):
		return true
	case <-stop:
		return false
	}
}

// longest is how long Serve sleeps at most: so it notices that the wall clock was stepped.
const longest = time.Second

// Round publishes a page of the timers that are due, and says how long it is until the next.
func (s *Store) Round(stop <-chan struct{}) time.Duration {
	s.mu.Lock()
	s.forget()
	now := s.clock()
	if s.next > now {
		wait := min(s.next-now, longest.Milliseconds())
		s.mu.Unlock()
		return time.Duration(wait) * time.Millisecond
	}
	s.next, s.round = math.MaxInt64, true // a timer that is set from here on makes next earlier again
	from := s.from
	s.mu.Unlock()
	page, next, err := s.read(from, now)
	if err != nil {
		if !errors.Is(err, journal.ErrClosed) {
			s.Log.Error("timers that are due cannot be read", "error", err)
		}
		s.endRound(now, nil)
		return pauseAfterError
	}
	var stopped []byte // the first that could not be published
	s.Do(func(t *session.Turn) {
		for i := range page {
			select {
			case <-stop:
				stopped = page[i].key
			default:
				if !s.publish(t, &page[i], now) {
					stopped = page[i].key
				}
			}
			if stopped != nil {
				return
			}
			t.Worked += workPerTimer
			t.Pace(t.Debt)
		}
	})
	switch {
	case stopped != nil:
		s.endRound(now, stopped)
		return pauseAfterError
	case len(page) > 0:
		s.endRound(next, append(page[len(page)-1].key, 0))
	default:
		s.endRound(next, nil)
	}
	return 0
}

// endRound notes when the next timer is due that is on disk, and where to read on; nil: where
// the round began.
func (s *Store) endRound(next int64, from []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round = false
	clear(s.removed)
	s.next = min(s.next, next)
	if from != nil {
		s.from = from
	}
	if s.added != nil && string(s.added) < string(s.from) {
		s.from = s.added
	}
	s.added = nil
}

// read reads a page of the timers that are due by now, and when the one after them is.
func (s *Store) read(from []byte, now int64) (page []due, next int64, err error) {
	s.Journal.WaitDurable()
	next, bytes := math.MaxInt64, 0
	err = s.Journal.Iterate(from, rows.AfterTimers(), func(key, value []byte) bool {
		at, _, err := rows.SplitTimerKey(key)
		if err != nil {
			s.Log.Error("a timer is passed over: its key cannot be read", "key", fmt.Sprintf("%q", key))
			return true
		}
		if at > now || len(page) == pageTimers || len(page) > 0 && bytes+len(value) > pageBytes {
			next = at
			return false
		}
		bytes += len(value)
		page = append(page, due{slices.Clone(key), slices.Clone(value)})
		return true
	})
	return page, next, err
}

// publish publishes a timer that was due, unless it was taken away meanwhile. False: not now,
// nor those behind it, for lack of disk.
func (s *Store) publish(t *session.Turn, d *due, now int64) (done bool) {
	at, number, err := rows.SplitTimerKey(d.key)
	var r rows.Timer
	if err == nil {
		r, err = rows.DecodeTimer(d.row)
	}
	var identity *access.Identity
	if err == nil && r.Identity != "" && s.o.May != nil {
		identity = new(access.Identity)
		err = json.Unmarshal([]byte(r.Identity), identity)
	}
	if err != nil { // the next start finds it again
		s.Log.Error("a timer is passed over: its row cannot be read", "key", fmt.Sprintf("%q", d.key), "error", err)
		return true
	}
	id := rows.TimerIDKey(r.Principal, []byte(r.ID))
	s.Journal.Admit()
	stripe := s.stripeOf(id)
	stripe.Lock()
	defer stripe.Unlock()
	s.mu.Lock()
	_, removed := s.removed[number]
	s.lagMs = now - at
	s.mu.Unlock()
	if removed {
		return true
	}
	if left := r.RunDue - s.runClock(); r.Run == s.Epoch && left > aheadMs {
		s.postpone(d, &r, id, left)
		return true
	}
	var batch journal.Seq
	if s.o.May != nil && !s.o.May.MayPublish(identity, r.Message.Topic()) {
		s.Counters.TimersDenied.Add(1)
		s.Log.Warn("a timer was not published: its client may not publish to the topic any more", "client", r.Client, "timer", r.ID, "topic", string(r.Message.Topic()))
		a := s.Journal.Begin()
		a.Delete(d.key)
		a.Delete(id)
		batch = a.End(nil)
	} else {
		var outcome Outcome
		switch outcome, batch = s.send(t, &r, identity, [2][]byte{d.key, id}); outcome {
		case NoDisk:
			return false
		case NoRoom:
			s.Counters.TimersRetried.Add(1)
			r.Tries = min(r.Tries+1, 16)
			s.postpone(d, &r, id, min(int64(retryMs)<<(r.Tries-1), retryMost))
			return true
		}
		s.Counters.TimersPublished.Add(1)
	}
	s.mu.Lock()
	size := sizeOf(d.row, id, r.Client, r.Message.Topic())
	s.count(accountOf(r.Principal, r.Client), -1, -size, true)
	s.note(string(id), change{nil, batch})
	s.mu.Unlock()
	return true
}

// send publishes the message.
func (s *Store) send(t *session.Turn, r *rows.Timer, identity *access.Identity, keys [2][]byte) (Outcome, journal.Seq) {
	m := message.FromRow(&r.Message, 0)
	if m.ExpiresAt != 0 {
		m.ExpiresAt += s.Now() // it was an interval until now
	}
	m.QoS, m.Retain, m.Publisher = r.QoS, r.Retain, r.Client
	if r.Principal != "" {
		m.Owner = &r.Principal
	}
	o := m.Outgoing()
	o.Quota = access.QuotaOf(s.o.May, identity)
	outcome, batch := s.o.Publish(t, &o, keys)
	o.Done()
	return outcome, batch
}

// postpone gives a timer another time, in so many ms. The ID's stripe is locked.
func (s *Store) postpone(d *due, r *rows.Timer, id []byte, in int64) {
	_, number, _ := rows.SplitTimerKey(d.key)
	now, _, err := s.find(id)
	s.mu.Lock()
	at := s.clock() + in
	s.mu.Unlock()
	m := &r.Message
	row := append(rows.AppendMessage(r.Append(nil), m.ExpiresAt, m.TopicLen, m.PropsLen), m.Body...)
	a := s.Journal.Begin()
	a.Delete(d.key)
	a.Set(rows.TimerKey(at, number), row)
	listed := err == nil && now != nil && now.Number == number
	if listed {
		moved := *now
		moved.Due = at
		now = &moved
		a.Set(id, now.Append(nil))
	} else { // salvaged data may lack the row
		now = &rows.TimerID{Due: at, Number: number}
	}
	batch := a.End(nil)
	s.mu.Lock()
	if listed {
		s.note(string(id), change{now, batch})
	}
	s.await(now)
	s.mu.Unlock()
}
