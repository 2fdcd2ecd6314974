package delayed

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Timer is a message to be published later. Its bytes are used until Prepare returns.
type Timer struct {
	delay.Request                   // with Asked
	Message       *message.Outgoing // its Principal counts the timer; its ExpiresAt is not looked at
	ExpiryMs      int64             // Message Expiry Interval, which begins when the message is published; 0: none
	Identity      *access.Identity  // of the client; nil: it has none
}

// Cancel names a timer to be cancelled.
type Cancel struct {
	Principal string
	ID        []byte
}

// Refusal says why a change can't be made.
type Refusal uint8

// The refusals.
const (
	NotRefused Refusal = iota
	TooMany            // timers or bytes of all principals
	TooManyOfClient
	Twice      // an earlier timer of the same change has this ID
	Unreadable // a row on disk can't be read; the log has it
	DiskLow    // the disk is nearly full
)

// Answer is what a client is told whose PUBLISH is refused.
func (why Refusal) Answer() (code mqtt.ReasonCode, reason string) {
	switch why {
	case TooMany:
		return mqtt.QuotaExceeded, "no room for this message: the server keeps as many timers as it may (--max-timers, --max-timer-bytes)"
	case TooManyOfClient:
		return mqtt.QuotaExceeded, "no room for this message: the client has as many timers as it may (--max-timers-per-client, --max-timer-bytes-per-client)"
	case DiskLow:
		return mqtt.QuotaExceeded, "the server's disk is nearly full (--disk-reserve)"
	case Unreadable:
		return mqtt.UnspecifiedError, "the server cannot read its disk"
	}
	return mqtt.Success, ""
}

// Change is timers that are set and cancelled together. It belongs to one goroutine.
type Change struct {
	s       *Store
	items   []item
	stripes []int
	Looked  journal.Seq // the last batch of what was looked at
}

// item is one timer ID of a change.
type item struct {
	key       string // of the row that finds the timer by its ID
	principal string // an account
	generated bool   // the ID is random, so no other timer has it
	old       *rows.TimerID
	oldOf     string // the account of old
	now       *rows.TimerID
	row       []byte // of the message; nil: the timer is taken away
}

// Prepare locks the IDs, finds what has them, and reserves room. refused is the number of the
// one that can't be: of sets, then of cancels, from 0. Then nothing is locked. Only stripes of
// keys may be locked before.
func (s *Store) Prepare(sets []Timer, cancels []Cancel) (c *Change, refused int, why Refusal) {
	c = &Change{s: s, items: make([]item, 0, len(sets)+len(cancels))}
	for i := range sets {
		t := &sets[i]
		generated := t.ID == nil
		if generated {
			t.ID = fmt.Appendf(nil, "%016x%016x", rand.Uint64(), rand.Uint64())
		}
		c.items = append(c.items, item{
			key:       string(rows.TimerIDKey(t.Identity.OwnedBy(), t.ID)),
			principal: accountOf(t.Identity.OwnedBy(), t.Message.Publisher),
			generated: generated,
		})
	}
	for i := range cancels {
		c.items = append(c.items, item{key: string(rows.TimerIDKey(cancels[i].Principal, cancels[i].ID))})
	}
	c.lock()
	var ids map[string]struct{} // of the items before
	if len(c.items) > 1 {
		ids = make(map[string]struct{}, len(c.items))
	}
	for i := range c.items {
		if why = c.look(i, ids); why != NotRefused {
			c.unlock()
			return nil, i, why
		}
	}
	if refused, why = c.reserve(sets); why != NotRefused {
		c.unlock()
		s.refused()
		return nil, refused, why
	}
	return c, 0, NotRefused
}

func (c *Change) lock() {
	for i := range c.items {
		c.stripes = append(c.stripes, c.s.stripe([]byte(c.items[i].key)))
	}
	slices.Sort(c.stripes)
	c.stripes = slices.Compact(c.stripes)
	for _, i := range c.stripes {
		c.s.stripes[i].Lock()
	}
}

func (c *Change) unlock() {
	for _, i := range c.stripes {
		c.s.stripes[i].Unlock()
	}
	c.stripes = nil
}

// look finds the timer that has the ID of an item now, and adds the ID to ids, which the items before
// have.
func (c *Change) look(i int, ids map[string]struct{}) Refusal {
	it := &c.items[i]
	if it.generated {
		return NotRefused
	}
	if _, twice := ids[it.key]; twice {
		return Twice
	}
	if i < len(c.items)-1 {
		ids[it.key] = struct{}{}
	}
	old, batch, err := c.s.find([]byte(it.key))
	if err != nil {
		c.s.Log.Error("a timer cannot be read", "row", fmt.Sprintf("%q", it.key), "error", err)
		return Unreadable
	}
	c.Looked = max(c.Looked, batch)
	if it.old = old; old != nil {
		principal, _, err := rows.SplitTimerIDKey([]byte(it.key))
		if err != nil {
			return Unreadable
		}
		it.oldOf = accountOf(principal, old.Client)
	}
	return NotRefused
}

// reserve makes the rows of the timers to be set, and counts them, in the place of those that
// they replace.
func (c *Change) reserve(sets []Timer) (refused int, why Refusal) {
	s := c.s
	for i := range sets {
		c.items[i].row = sets[i].row(s)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range sets {
		it := &c.items[i]
		it.now = sets[i].place(s, it)
		why := s.mayCount(it)
		if why == NotRefused && s.count(it.principal, 1, it.now.Size, false) {
			c.countOld(it, -1)
			continue
		}
		it.now = nil
		c.release()
		return i, max(why, TooMany)
	}
	return 0, NotRefused
}

// release gives reserved room back; s.mu is held.
func (c *Change) release() {
	for i := range c.items {
		if it := &c.items[i]; it.now != nil {
			c.countOld(it, 1)
			c.s.count(it.principal, -1, -it.now.Size, true)
			it.now = nil
		}
	}
}

// countOld counts the timer that has the ID of an item as there again, or with a sign of -1 as
// not; s.mu is held.
func (c *Change) countOld(it *item, sign int64) {
	if it.old != nil {
		c.s.count(it.oldOf, sign, sign*it.old.Size, true)
	}
}

// row makes the row of the message.
func (t *Timer) row(s *Store) []byte {
	o := t.Message
	r := rows.Timer{QoS: o.QoS, Retain: o.Retain, Principal: t.Identity.OwnedBy(), Client: o.Publisher, ID: string(t.ID)}
	if t.Relative {
		r.Run, r.RunDue = s.Epoch, s.runClock()+t.Ms
	}
	if t.Identity != nil {
		identity, _ := json.Marshal(t.Identity) // an Identity consists of texts, so this does not fail
		r.Identity = string(identity)
	}
	props := delay.AppendProps(nil, t.Message.RawProps)
	of := message.Outgoing{Topic: o.Topic, RawProps: props, Payload: o.Payload}
	m := of.Kept()
	m.ExpiresAt = t.ExpiryMs
	return m.AppendRow(r.Append(nil), 0)
}

// place says when the timer is due; s.mu is held.
func (t *Timer) place(s *Store, it *item) *rows.TimerID {
	now := s.clock()
	r := &rows.TimerID{Number: s.numbers.Add(1), Interval: -1, At: t.Ms, Client: t.Message.Publisher, Topic: string(t.Message.Topic)}
	early := int64(clockAheadMs)
	if t.Relative {
		r.Interval, r.At = t.Ms, now+t.Ms
		early += clockBehindMs
	}
	r.Due = now // not before the timers that were looked at, or the deleted rows of those would be read again
	if r.At > now {
		r.Due = r.At + early
	}
	r.Size = sizeOf(it.row, []byte(it.key), r.Client, t.Message.Topic)
	return r
}

// sizeOf is what a timer counts: the bytes of the row of its message, and of the row by which
// it is found.
func sizeOf(row, key []byte, client string, topic []byte) int64 {
	return int64(len(row)+len(key)+len(client)+len(topic)) + rowOverhead
}

// mayCount says whether there may be one more timer, or one in the place of the old one; s.mu
// is held.
func (s *Store) mayCount(it *item) Refusal {
	l := s.Limits()
	timers, bytes := int64(1), it.now.Size
	if it.old != nil {
		timers, bytes = 0, bytes-it.old.Size
	}
	if !fits(s.timers, timers, int64(l.MaxTimers)) || !fits(s.bytes, bytes, l.MaxTimerBytes) {
		return TooMany
	}
	var own account
	if a := s.accounts[it.principal]; a != nil {
		own = *a
	}
	if it.old != nil && it.oldOf != it.principal {
		timers, bytes = 1, it.now.Size
	}
	if !fits(own.timers, timers, int64(l.MaxClientTimers)) || !fits(own.bytes, bytes, l.MaxClientTimerBytes) {
		return TooManyOfClient
	}
	return NotRefused
}

// fits says whether what is held may grow so much; a bound of 0 is none.
func fits(held, by, most int64) bool { return by <= 0 || most <= 0 || held+by <= most }

// Found says whether there is a timer with the ID of an item, by its number as in Prepare.
func (c *Change) Found(i int) bool { return c.items[i].old != nil }

// HasRows says whether there are rows to append.
func (c *Change) HasRows() bool {
	return slices.ContainsFunc(c.items, func(it item) bool { return it.old != nil || it.now != nil })
}

// Append appends the rows.
func (c *Change) Append(a journal.Append) {
	var row []byte
	for i := range c.items {
		it := &c.items[i]
		if it.old != nil {
			a.Delete(rows.TimerKey(it.old.Due, it.old.Number))
		}
		switch {
		case it.now != nil:
			a.Set(rows.TimerKey(it.now.Due, it.now.Number), it.row)
			row = it.now.Append(row[:0])
			a.Set([]byte(it.key), row)
		case it.old != nil:
			a.Delete([]byte(it.key))
		}
	}
}

// Withdraw takes back what Prepare has done.
func (c *Change) Withdraw() {
	c.s.mu.Lock()
	c.release()
	c.s.mu.Unlock()
	c.unlock()
}

// Commit says in which batch the rows are.
func (c *Change) Commit(batch journal.Seq) {
	s := c.s
	var warn []any
	wake := false
	s.mu.Lock()
	for i := range c.items {
		it := &c.items[i]
		if it.old == nil && it.now == nil {
			continue
		}
		if it.now == nil {
			c.countOld(it, -1)
		}
		if it.old != nil && s.round {
			s.removed[it.old.Number] = struct{}{}
		}
		s.note(it.key, change{it.now, batch})
		if it.now != nil {
			wake = s.await(it.now) || wake
			warn = append(warn, s.nearFull(it.principal)...)
		}
	}
	s.mu.Unlock()
	c.unlock()
	for i := range c.items {
		switch it := &c.items[i]; {
		case it.now != nil:
			s.Counters.TimersSet.Add(1)
		case it.old != nil:
			s.Counters.TimersCancelled.Add(1)
		}
	}
	if wake {
		s.wakeUp()
	}
	if warn != nil {
		s.Log.Warn("timers come near their bound, from which on more are refused", warn...)
	}
}

// await has Serve come by when the timer is due. True: earlier than it would; s.mu is held.
func (s *Store) await(r *rows.TimerID) bool {
	key := rows.TimerKey(r.Due, r.Number)
	if s.round && (s.added == nil || string(key) < string(s.added)) {
		s.added = key
	}
	if string(key) < string(s.from) {
		s.from = key
	}
	earlier := r.Due < s.next
	s.next = min(s.next, r.Due)
	return earlier
}

func (s *Store) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// nearTenths is from where on a bound is near, farTenths from where on no more.
const nearTenths, farTenths = 8, 5

// nearFull gives what is to be logged because a bound has come near; s.mu is held.
func (s *Store) nearFull(name string) (args []any) {
	l := s.Limits()
	near := func(warned *bool, timers, bytes, mostTimers, mostBytes int64) bool {
		over := func(tenths int64) bool {
			return mostTimers > 0 && timers > mostTimers/10*tenths || mostBytes > 0 && bytes > mostBytes/10*tenths
		}
		was := *warned
		*warned = over(nearTenths) || was && over(farTenths)
		return *warned && !was
	}
	if near(&s.warned, s.timers, s.bytes, int64(l.MaxTimers), l.MaxTimerBytes) {
		args = append(args, "timers", s.timers, "bytes", s.bytes, "max_timers", l.MaxTimers, "max_bytes", l.MaxTimerBytes)
	}
	if a := s.accounts[name]; a != nil && near(&a.warned, a.timers, a.bytes, int64(l.MaxClientTimers), l.MaxClientTimerBytes) {
		args = append(args, "client", name, "client_timers", a.timers, "client_bytes", a.bytes)
	}
	return args
}

// Set sets one timer, or puts it in the place of the one with the same ID, together with the
// row that says that the server has received a QoS 2 publish (nil: none), and returns the
// batch for which the acknowledgement must wait. For readers: the journal may let them wait.
func (s *Store) Set(t Timer, received, row []byte) (journal.Seq, Refusal) {
	s.Journal.Admit()
	if s.Journal.Low() {
		s.refused()
		return 0, DiskLow
	}
	c, _, why := s.Prepare([]Timer{t}, nil)
	if why != NotRefused {
		return 0, why
	}
	a := s.Journal.Begin()
	c.Append(a)
	if received != nil {
		a.Set(received, row)
	}
	batch := a.End(nil)
	c.Commit(batch)
	return batch, NotRefused
}

// Cancel cancels a timer, and says whether there was one. A reply must wait for the batch; 0:
// for none. For readers: the journal may let them wait.
func (s *Store) Cancel(which Cancel) (found bool, batch journal.Seq, why Refusal) {
	s.Journal.Admit()
	c, _, why := s.Prepare(nil, []Cancel{which})
	if why != NotRefused {
		return false, 0, why
	}
	if !c.Found(0) {
		c.Withdraw()
		return false, c.Looked, NotRefused
	}
	a := s.Journal.Begin()
	c.Append(a)
	batch = a.End(nil)
	c.Commit(batch)
	return true, batch, NotRefused
}

// stripeOf locks the stripe of one ID, and returns it.
func (s *Store) stripeOf(key []byte) *lockrank.Mutex[lockrank.TimerStripe] {
	return &s.stripes[s.stripe(key)]
}
