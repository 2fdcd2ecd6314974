package engine

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/engine/notice"
	"github.com/holdfast-mqtt/holdfast/internal/engine/quota"
	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/engine/turns"
	"github.com/holdfast-mqtt/holdfast/internal/engine/unapplied"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/slab"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/wallclock"
)

// Engine is what the service needs: something that opens sessions. Local is the
// one of this package; others may keep the keys elsewhere.
type Engine interface {
	Open(o Origin) Session
	// Watching gives the origins of the sessions that watch a key for which is says
	// true. It is asked with locks held.
	Watching(is func(o *Origin, key []byte) bool) []*Origin
	// Watchers gives the origins of up to most sessions that watch the key, and how many do.
	Watchers(key []byte, most int) (some []*Origin, all int)
}

// Origin is who sends a session's commands.
type Origin struct {
	ID       string // of the principal whose commands they are
	Verified bool   // false: the ID is only claimed
	// Bounds says what that principal may hold. It is asked at each write, with locks held,
	// and must not block; nil: Options say it.
	Bounds func() quota.Bounds
	Sink   Sink // nil: events are dropped
	// Waiter is called once for each reply whose Wait says Asked. nil: none does.
	Waiter journal.Waiter
	// Gone says that replies can't reach the client any more: work that only reads
	// is given up. It is asked often, from one goroutine at a time; nil: it never is.
	Gone func() bool
	// Work is told of the work that a SCAN has done, in units of about a microsecond,
	// between two rows: it may let others work before it returns. nil: nothing is told.
	Work func(units int)
	// Rest is called before a SCAN waits for what another one may hold while it calls Work.
	// nil: nothing is told.
	Rest func()
}

// Sink hears of changes to the keys that its session watches. Its methods are
// called by the journal's committer, hold up all replies, and so must
// neither block nor do I/O. A call that has begun when the session is closed may
// end after that.
type Sink interface {
	// Event tells one change; e is valid during the call. One key's events come
	// in the order of its changes.
	Event(e *statestore.Event)
	// Lost tells that events are missing from here on: the client must be
	// disconnected. Local never loses any.
	Lost()
}

// Session is one connection's way in. Its commands take effect in the order of
// the calls of Do.
type Session interface {
	// Do runs c.Command, leaves the reply in c, and says what the reply has to wait
	// for. One goroutine at a time; the command's bytes are used during the call only.
	// A write blocks while the disk does not keep up, a SCAN while it reads and while
	// too many others do, and LOAD, STORE and DONE may read the disk for a message
	// that is remembered.
	Do(c *Call) Wait
	// Transact is Do for a TXN. Its Companion, if it has one, is called meanwhile.
	Transact(x *Txn) Wait
	// Close drops the session's watches. It may be called at any time, from any
	// goroutine, repeatedly.
	Close()
}

// Wait says when the reply to a command may leave. Replies to one session's commands
// leave in the order of the commands.
type Wait struct {
	// Batch is the journal's that must be durable first; 0: none.
	Batch journal.Seq
	// Asked says that the engine has asked the journal in the session's name, because
	// the reply has a place among the notifications of the key: it may leave when
	// Origin.Waiter has been called for it. That happens once, in the order of the
	// journal's callbacks, maybe before Do has returned.
	Asked bool
	// Then is a later batch that must be durable as well; 0: none.
	Then journal.Seq
}

// Clock is what the engine knows of time.
type Clock interface {
	// WallMs is the machine's clock, ms since the Unix epoch: for versions and
	// for judging timestamps. It may step.
	WallMs() int64
	// SinceStart never steps; deadlines follow it.
	SinceStart() time.Duration
}

// Defaults of Options.
const (
	DefaultNodeID        = "StateStore"
	DefaultMaxSkew       = 60 * time.Second
	DefaultMaxKeys       = 1_000_000
	DefaultMaxBytes      = 1 << 30
	DefaultMaxWatches    = 10_000
	DefaultMaxWatchBytes = 4 << 20
	DefaultScanPageKeys  = 1_000
	DefaultScanPageBytes = 256 << 10
	DefaultMaxScans      = 4
	DefaultRemember      = 7 * 24 * time.Hour
	DefaultMaxRemember   = 30 * 24 * time.Hour
)

// Options of Open. Only Journal is required; zero values are the defaults.
type Options struct {
	Journal *journal.Journal // stays the caller's to close, after the engine
	NodeID  string           // of the versions issued: not empty, no colon
	MaxSkew time.Duration    // how far ahead a request's timestamps may be

	MaxKeys       int64
	MaxBytes      int64 // of keys and values
	MaxWatches    int   // per session
	MaxWatchBytes int64 // of the keys that one session watches

	MaxClientKeys  int64 // that belong to one client (package quota); 0: no bound but MaxKeys
	MaxClientBytes int64 // of those keys and their values; 0: no bound but MaxBytes

	ScanPageKeys  int // keys in one page of SCAN
	ScanPageBytes int // bytes of keys and values in one page of SCAN, unless its first key has more
	MaxScans      int // scans that read at the same time, one of a session; others wait

	Remember      time.Duration // how long a message is remembered that doesn't say; at most MaxRemember
	MaxRemember   time.Duration // how long one may be that does
	MaxRemembered int64         // bytes of remembered messages (statestore.Memo.Size); 0: a quarter of what the disk has free at the start

	Clock  Clock        // nil: the machine's
	Logger *slog.Logger // nil: slog.Default
	Memory *memory.Pool // charged with what clients have the engine hold; nil: no bound
	// AllowClockRegression makes Ready content with a wall clock that is far
	// behind the last version.
	AllowClockRegression bool
	// CanRead is asked for each key of a SCAN's page; nil allows all.
	CanRead      func(o *Origin, key []byte) bool
	longestSleep time.Duration // set by tests; 0: longestSleep
}

// Local keeps all keys in memory and every change in a journal. Close it before
// the journal; sessions need not be closed first. Safe for concurrent use.
type Local struct {
	o       Options
	journal *journal.Journal
	clock   Clock
	baseMs  int64 // the wall clock when SinceStart was zero; it says which run this is, too
	seed    maphash.Seed
	memory  *slab.Memory // of the shards' tables
	shards  [shardCount]shard
	stripes [stripeCount]stripe
	scans   turns.Places // of the scans that may read
	expiry  expiry
	forgets forgetting
	watches atomic.Int64
	loaded  time.Duration // what loading took

	settling unapplied.Queue

	mu    lockrank.Mutex[lockrank.Versions]
	last  hlc.Timestamp // guarded by mu: the last version issued
	quota quota.Ledger  // guarded by mu
	tally rows.Tally    // guarded by an Append of the journal, or by being its committer

	fitted int64 // bytes of remembered messages: what Ledger.FitRemembered has said at the start

	notices notice.Book // guarded by mu
	aheadBy string      // guarded by mu: the client whose timestamp has last put the versions far ahead of the wall clock

	forgotten int64        // guarded by mu: by the clean-up, since the start
	expired   atomic.Int64 // keys, since the start
	steppedMs int64        // guarded by mu: how far the wall clock was stepped forward in all; see clock.go
	sweptMs   int64        // guarded by mu: no earlier deadline may join the index
}

var _ Engine = (*Local)(nil)

// Open loads every key from the journal, deletes those whose time ran out
// meanwhile, and begins to expire and to forget. It owns the journal's meta record
// and the rows that begin with "k|", "r|" and "x|" from here on.
func Open(o Options) (*Local, error) {
	o.setDefaults()
	e := &Local{
		o:       o,
		journal: o.Journal,
		clock:   o.Clock,
		seed:    maphash.MakeSeed(),
		memory:  slab.NewMemory(),
		scans:   turns.New(o.MaxScans),
	}
	e.quota = quota.New(quota.Limits{
		Keys: o.MaxKeys, Bytes: o.MaxBytes, ClientKeys: o.MaxClientKeys, ClientBytes: o.MaxClientBytes,
		Pool: o.Memory,
	})
	e.memory.Account(func(n int64) { o.Memory.Charge(memory.Keys, n) })
	for i := range e.shards {
		e.shards[i].init(e)
	}
	began := e.clock.SinceStart()
	e.baseMs = e.clock.WallMs() - began.Milliseconds()
	if err := e.load(); err != nil {
		return nil, err
	}
	e.fitted = e.quota.FitRemembered(e.journal.Free())
	e.quota.SetMaxRemembered(cmp.Or(o.MaxRemembered, e.fitted))
	e.loaded = e.clock.SinceStart() - began
	e.journal.SetMeta(e.appendMeta)
	e.ExpireDue()
	e.expiry.start(e)
	e.forgets.start(e)
	return e, nil
}

func (o *Options) setDefaults() {
	o.NodeID = cmp.Or(o.NodeID, DefaultNodeID)
	o.MaxSkew = cmp.Or(o.MaxSkew, DefaultMaxSkew)
	o.MaxKeys = cmp.Or(o.MaxKeys, DefaultMaxKeys)
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	o.MaxWatches = cmp.Or(o.MaxWatches, DefaultMaxWatches)
	o.MaxWatchBytes = cmp.Or(o.MaxWatchBytes, DefaultMaxWatchBytes)
	o.ScanPageKeys = cmp.Or(o.ScanPageKeys, DefaultScanPageKeys)
	o.ScanPageBytes = cmp.Or(o.ScanPageBytes, DefaultScanPageBytes)
	o.MaxScans = cmp.Or(o.MaxScans, DefaultMaxScans)
	o.Remember = cmp.Or(o.Remember, DefaultRemember)
	o.MaxRemember = cmp.Or(o.MaxRemember, DefaultMaxRemember)
	if o.Clock == nil {
		o.Clock = systemClock{time.Now()}
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

type systemClock struct{ start time.Time }

func (c systemClock) WallMs() int64             { return time.Now().UnixMilli() + wallclock.ShiftMs }
func (c systemClock) SinceStart() time.Duration { return time.Since(c.start) }

// nowMs is the clock of deadlines: the wall clock as it was at the start, and
// the time that has passed since.
func (e *Local) nowMs() int64 { return e.baseMs + e.clock.SinceStart().Milliseconds() }

// now is the same with what was cut to make it whole milliseconds: 1 if there was
// anything, else 0.
func (e *Local) now() (ms, cut int64) {
	since := e.clock.SinceStart()
	if since%time.Millisecond != 0 {
		cut = 1
	}
	return e.baseMs + since.Milliseconds(), cut
}

// size is what an entry counts against MaxBytes.
func size(key []byte, entry *statestore.Entry) int64 {
	return int64(len(key)) + int64(len(entry.Value))
}

// appendMeta gives the journal the last version issued. The journal asks after
// it has closed a batch to appends, and versions are issued before the append:
// so what is stored is not older than any version in the batch. What is remembered is as of
// the batch exactly.
func (e *Local) appendMeta(dst []byte, batch journal.Seq) []byte {
	e.mu.Lock()
	last := e.last
	e.mu.Unlock()
	return rows.AppendMeta(dst, rows.Meta{Last: last, Remembered: e.tally.Until(batch)})
}

// Open begins a session. Not calling its Close leaks its watches.
func (e *Local) Open(o Origin) Session {
	return &session{e: e, origin: o}
}

// Stats is a moment's view for metrics.
type Stats struct {
	Keys, MaxKeys   int64
	Bytes, MaxBytes int64 // of keys and values
	Watches         int64

	Scans    int64         // that read now
	Last     hlc.Timestamp // the last version issued
	AheadMs  int64         // how far Last is ahead of the wall clock, 0 if it is not
	AheadBy  string        // the client whose timestamp has last put it more than 5 s ahead, empty if none has
	LoadedIn time.Duration // what loading the keys took at the start

	OutsideHeap int64 // bytes of memory outside of Go's heap, for table.Records and their index

	MostID   string // which principal has written most keys last, as far as that is known
	MostKeys int64  // how many

	Remembered         statestore.Remembered // messages, and what they count
	MaxRemembered      int64                 // bytes
	Forgotten, Expired int64                 // messages and keys whose time had come, since the start
}

// SetBounds puts other bounds in force than those of Options. Zero for Remembered is what
// Open has found for it.
func (e *Local) SetBounds(l quota.Limits) {
	l.Remembered = cmp.Or(l.Remembered, e.fitted)
	e.mu.Lock()
	e.quota.SetLimits(l)
	e.mu.Unlock()
}

// Stats returns what the engine holds now.
func (e *Local) Stats() Stats {
	s := Stats{Watches: e.watches.Load(), Scans: int64(len(e.scans)), LoadedIn: e.loaded, OutsideHeap: e.memory.Bytes()}
	e.mu.Lock()
	s.MaxKeys, s.MaxBytes, s.MaxRemembered = e.quota.Limits()
	s.Keys, s.Bytes, s.Last, s.AheadBy = e.quota.Keys, e.quota.Bytes, e.last, e.aheadBy
	s.Remembered, s.Forgotten, s.Expired = e.quota.Remembered, e.forgotten, e.expired.Load()
	s.MostID, s.MostKeys = e.quota.Most()
	e.mu.Unlock()
	s.AheadMs = e.aheadMs(s.Last)
	return s
}

func (e *Local) aheadMs(last hlc.Timestamp) int64 {
	wall := uint64(max(0, e.clock.WallMs()))
	if last.Wall <= wall {
		return 0
	}
	return int64(last.Wall - wall)
}

// Ready says why the store should not serve yet: the wall clock was stepped
// back, so far behind the last version that clients would refuse the versions of
// their writes (protocol, section 4). It mends itself as time passes. Commands
// are run all the same.
func (e *Local) Ready() error {
	if e.o.AllowClockRegression {
		return nil
	}
	ahead := time.Duration(e.Stats().AheadMs) * time.Millisecond
	if ahead <= e.o.MaxSkew {
		return nil
	}
	return fmt.Errorf("the machine's clock is %v behind the last version issued, which is more than %v: set the clock right, or wait, or allow the regression", ahead, e.o.MaxSkew)
}

// Close ends the expiry and the clean-up; commands are run as before, but a key
// whose time runs out is not deleted any more, and no message is forgotten. What
// was appended to the journal is completed by the journal's Close.
func (e *Local) Close() {
	e.expiry.stop()
	e.forgets.Stop()
}
