package delayed

import (
	"errors"
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// Store has the timers of a broker. Its methods are safe for concurrent use.
type Store struct {
	*session.Env
	o       Options
	stripes [64]lockrank.Mutex[lockrank.TimerStripe] // of IDs
	seed    maphash.Seed
	wake    chan struct{} // a timer is due earlier than the next one

	elapsed func() int64  // Env.Now, unless a test moves the time
	numbers atomic.Uint64 // number given last

	mu       lockrank.Mutex[lockrank.Delayed]
	accounts map[string]*account // by principal or client ID; guarded by mu, as all below
	timers   int64
	bytes    int64
	warned   bool  // the bound of all is near, and the log has it
	ahead    int64 // what to add to the broker's wall clock at the start, and the time since, to get the Store's clock; it never falls

	overlay map[string]change // timers whose rows may not be in the database yet, by the key of their ID
	recent  []recent          // the same, in the order of batches

	next    int64               // when the next timer is due; may be earlier
	round   bool                // Serve publishes a page
	removed map[uint64]struct{} // timers that were taken away during the round, by number

	from  []byte // where Serve reads on: no timer is before
	added []byte // of the timers that were set during the round the least key; nil: none
	lagMs int64  // how late the timer was that Serve looked at last
}

// Options configures a Store.
type Options struct {
	May access.Permissions // judges the message of a timer that is due; nil: everything is allowed
	// Publish publishes the message of a timer, and deletes rows in the same batch.
	Publish func(t *session.Turn, o *message.Outgoing, rows [2][]byte) (Outcome, journal.Seq)
}

// Outcome is what came of a message that was due.
type Outcome uint8

// The outcomes.
const (
	Published Outcome = iota
	NoRoom            // a queue that wants its publishers to wait is full, or all together are
	NoDisk            // the disk is nearly full
)

// account is what one principal has, or one client that has not proven who it is.
type account struct {
	timers, bytes int64
	warned        bool
}

// accountMemory is about what an account takes of memory besides its name.
const accountMemory = 128

// change is what became of a timer ID.
type change struct {
	now   *rows.TimerID // nil: there is no such timer any more
	batch journal.Seq
}

type recent struct {
	key   string
	batch journal.Seq
}

// rowOverhead is about what the two rows of a timer take on disk besides their bytes.
const rowOverhead = 64

// New is a store without timers.
func New(env *session.Env, o Options) *Store {
	return &Store{
		Env: env, o: o, elapsed: env.Now, seed: maphash.MakeSeed(), wake: make(chan struct{}, 1), accounts: map[string]*account{},
		overlay: map[string]change{}, next: math.MaxInt64, removed: map[uint64]struct{}{}, from: rows.TimersFrom(0),
	}
}

// clockAheadMs and clockBehindMs are by how much the Store's clock may differ from the latest time
// that the wall clock has claimed, as both are counted in whole milliseconds. A timer is due so much
// later, so that its message does not come before its time.
const clockAheadMs, clockBehindMs = 1, 1

// clock is the latest time that the wall clock has claimed, in ms; s.mu is held.
func (s *Store) clock() int64 {
	run := s.runClock()
	s.ahead = max(s.ahead, s.WallMs()-run)
	return run + s.ahead
}

// runClock is the wall clock of the start and the time since, in ms: no step moves it.
func (s *Store) runClock() int64 { return s.Epoch + s.elapsed() }

// Load counts the timers that are on disk, while the server starts.
func (s *Store) Load() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	last := uint64(max(0, now)) << 20 // so that a number is never given twice
	var bad error
	err := s.Journal.IterateOnce([]byte{byte(rows.TimerIDKind), '|'}, []byte{byte(rows.TimerIDKind), '|' + 1}, func(key, value []byte) bool {
		principal, _, err := rows.SplitTimerIDKey(key)
		var r rows.TimerID
		if err == nil {
			r, err = rows.DecodeTimerID(value)
		}
		if err != nil {
			bad = errors.Join(errors.New("reading the timers"), err)
			return false
		}
		last = max(last, r.Number)
		s.count(accountOf(principal, r.Client), 1, r.Size, true)
		s.next = min(s.next, r.Due)
		if latest := r.Latest(now); r.Due > latest+retryMost {
			bad = s.move(key, &r, latest)
		}
		return bad == nil
	})
	s.numbers.Store(last)
	return errors.Join(err, bad)
}

// move gives a timer another due time, while the server starts.
func (s *Store) move(key []byte, r *rows.TimerID, due int64) error {
	value, found, err := s.Journal.Get(rows.TimerKey(r.Due, r.Number))
	if err != nil || !found {
		return err
	}
	a := s.Journal.Begin()
	a.Delete(rows.TimerKey(r.Due, r.Number))
	r.Due = due
	a.Set(rows.TimerKey(r.Due, r.Number), value)
	a.Set(key, r.Append(nil))
	a.End(nil)
	s.next = min(s.next, due)
	return nil
}

func accountOf(principal, client string) string {
	if principal != "" {
		return principal
	}
	return client
}

// count adds to what there is, or with negative numbers takes away. forced: it is there
// already. It returns false if there is no memory for a new account. s.mu is held.
func (s *Store) count(name string, timers, bytes int64, forced bool) bool {
	a := s.accounts[name]
	if a == nil {
		if size := int64(accountMemory + len(name)); forced {
			s.Memory.Charge(memory.Sessions, size)
		} else if !s.Memory.Take(memory.Sessions, size) {
			return false
		}
		a = new(account)
		s.accounts[name] = a
	}
	a.timers += timers
	a.bytes += bytes
	s.timers += timers
	s.bytes += bytes
	if a.timers <= 0 {
		delete(s.accounts, name)
		s.Memory.Credit(memory.Sessions, int64(accountMemory+len(name)))
	}
	return true
}

// Levels are what there is.
type Levels struct {
	Timers, Bytes int64
	Overlay       int   // timer IDs whose last change the database may not have yet
	LagMs         int64 // how late the timer was that was due last
}

// Levels gives the current figures.
func (s *Store) Levels() Levels {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Levels{Timers: s.timers, Bytes: s.bytes, Overlay: len(s.overlay), LagMs: s.lagMs}
}

// stripe is the number of an ID's lock.
func (s *Store) stripe(key []byte) int {
	return int(maphash.Bytes(s.seed, key) % uint64(len(s.stripes)))
}

// find returns the timer that has an ID now, nil if there is none, and the batch of what was
// looked at. The ID's stripe is locked.
func (s *Store) find(key []byte) (r *rows.TimerID, batch journal.Seq, err error) {
	s.mu.Lock()
	found, recently := s.overlay[string(key)]
	s.mu.Unlock()
	if recently {
		return found.now, found.batch, nil
	}
	row, there, err := s.Journal.Probe(nil, key)
	if err != nil || !there {
		return nil, 0, err
	}
	on, err := rows.DecodeTimerID(row)
	return &on, 0, err
}

// note remembers a change until the database has it; s.mu is held.
func (s *Store) note(key string, c change) {
	s.forget()
	s.overlay[key] = c
	s.recent = append(s.recent, recent{key, c.batch})
}

// forget forgets changes that the database has; s.mu is held.
func (s *Store) forget() {
	applied := s.Journal.Applied()
	for len(s.recent) > 0 && s.recent[0].batch <= applied {
		if old := s.recent[0]; s.overlay[old.key].batch == old.batch {
			delete(s.overlay, old.key)
		}
		s.recent = s.recent[1:]
	}
	if len(s.recent) == 0 && cap(s.recent) > 0 { // a map does not shrink
		s.recent, s.overlay = nil, map[string]change{}
	}
}

// refused counts a publish or a transaction that is refused.
func (s *Store) refused() {
	s.Counters.TimersRefused.Add(1)
	s.Counters.Rejected.Add(1)
}

// Judge says why a timer can't be so far off; empty: it can.
func (s *Store) Judge(r delay.Request) (reason string) {
	left := r.Ms
	if !r.Relative {
		s.mu.Lock()
		left = r.Ms - s.clock()
		s.mu.Unlock()
	}
	if most := s.Limits().MaxDelay; left > most.Milliseconds() {
		s.refused()
		return "the message is to be delivered later than --max-delay allows: " + most.Round(time.Second).String() + " from now"
	}
	return ""
}
