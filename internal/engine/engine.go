package engine

import (
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"holdfast/hlc"
	"holdfast/internal/journal"
	"holdfast/internal/lockrank"
	budget "holdfast/internal/memory"
	"holdfast/internal/slab"
	"holdfast/internal/statestore"
)

// Engine is what the service needs: something that opens sessions. Local is the
// one of this package; others may keep the keys elsewhere.
type Engine interface {
	Open(o Origin) Session
}

// Origin is who sends a session's commands.
type Origin struct {
	ID       string
	Verified bool // false: the ID is only claimed
	Sink     Sink // nil: events are dropped
	// Gone says that replies can't reach the client any more: work that only reads
	// is given up. It is asked often, from one goroutine at a time; nil: it never is.
	Gone func() bool
	// Work is told of the work that a SCAN has done, in units of about a microsecond,
	// between two rows: it may let others work before it returns. nil: nothing is told.
	Work func(units int)
}

// Sink hears of changes to the keys that its session watches. Its methods are
// called by the journal's committer, hold up everybody's replies, and so must
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
	// Do runs a command. One goroutine at a time; cmd and its bytes are used
	// during the call only. A write blocks while the disk does not keep up, a
	// SCAN while it reads and while too many others do, and LOAD, STORE and DONE
	// may read the disk for a message that is remembered.
	Do(cmd *statestore.Command, c Completion)
	// Close drops the session's watches. The replies to commands already given
	// still come. It may be called at any time, by anybody, repeatedly.
	Close()
}

// Completion takes the reply to one command.
type Completion interface {
	// Reply or ReplyWhenDurable is called exactly once; r is valid during the call.
	// Neither may block. Without Hold it is called inside Do.
	//
	// Hold says that Reply may come later and from another goroutine: what it will
	// need of the request must be copied now. It is called at most once, inside Do,
	// with locks of the engine held. Then the journal's committer calls Reply, before
	// Do has returned or after, or it is called inside Do after all, if there was
	// nothing to wait for.
	Hold()
	Reply(r *statestore.Reply)
	// ReplyWhenDurable gives the reply to a change that nobody watches: it may be
	// seen as soon as the journal's batch is durable.
	ReplyWhenDurable(batch journal.Seq, r *statestore.Reply)
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
	DefaultMaxRemembered = 10_000_000
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

	MaxClientKeys  int64 // that belong to one client (owner.go); 0: no bound but MaxKeys
	MaxClientBytes int64 // of those keys and their values; 0: no bound but MaxBytes

	ScanPageKeys  int // keys in one page of SCAN
	ScanPageBytes int // bytes of keys in one page of SCAN
	MaxScans      int // scans that read at the same time, one of a session; others wait

	Remember      time.Duration // how long a message is remembered that doesn't say; at most MaxRemember
	MaxRemember   time.Duration // how long one may be that does
	MaxRemembered int64         // messages

	Clock  Clock        // nil: the machine's
	Logger *slog.Logger // nil: slog.Default
	Memory *budget.Pool // charged with what clients have the engine hold; nil: no bound
	// AllowClockRegression makes Ready content with a wall clock that is far
	// behind the last version.
	AllowClockRegression bool
	// CanRead is asked for each key of a SCAN's page; nil allows all.
	CanRead func(o *Origin, key []byte) bool
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
	scans   chan struct{} // a place for each scan that may read
	expiry  expiry
	forgets forgetting
	watches atomic.Int64
	loaded  time.Duration // what loading took

	settlingMu  lockrank.Mutex[lockrank.Settling]
	settling    []settled // guarded by settlingMu: in the order of batches
	settledFrom int       // guarded by settlingMu: those before it are done with

	mu    lockrank.Mutex[lockrank.Versions]
	last  hlc.Timestamp // guarded by mu: the last version issued
	keys  int64         // guarded by mu
	bytes int64         // guarded by mu: of keys and values

	owners   owners        // guarded by mu
	fullSaid time.Duration // guarded by mu: when sayFull has logged last, since the start
	aheadBy  string        // guarded by mu: the client whose timestamp has last put the versions far ahead of the wall clock

	remembered int64 // guarded by mu: messages, those included whose time has come
	forgotten  int64 // guarded by mu: by the clean-up, since the start
	steppedMs  int64 // guarded by mu: how far the wall clock was stepped forward in all; see clock.go
	sweptMs    int64 // guarded by mu: no earlier deadline may join the index
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
		scans:   make(chan struct{}, o.MaxScans),
	}
	e.memory.Account(func(n int64) { o.Memory.Charge(budget.Keys, n) })
	for i := range e.shards {
		e.shards[i].init(e)
	}
	began := e.clock.SinceStart()
	e.baseMs = e.clock.WallMs() - began.Milliseconds()
	if err := e.load(); err != nil {
		return nil, err
	}
	if err := e.countRemembered(); err != nil {
		return nil, err
	}
	e.loaded = e.clock.SinceStart() - began
	e.journal.SetMeta(e.appendMeta)
	e.ExpireDue()
	e.expiry.start(e)
	e.forgets.start(e)
	return e, nil
}

func (o *Options) setDefaults() {
	setDefault(&o.NodeID, DefaultNodeID)
	setDefault(&o.MaxSkew, DefaultMaxSkew)
	setDefault(&o.MaxKeys, DefaultMaxKeys)
	setDefault(&o.MaxBytes, DefaultMaxBytes)
	setDefault(&o.MaxWatches, DefaultMaxWatches)
	setDefault(&o.MaxWatchBytes, DefaultMaxWatchBytes)
	setDefault(&o.ScanPageKeys, DefaultScanPageKeys)
	setDefault(&o.ScanPageBytes, DefaultScanPageBytes)
	setDefault(&o.MaxScans, DefaultMaxScans)
	setDefault(&o.Remember, DefaultRemember)
	setDefault(&o.MaxRemember, DefaultMaxRemember)
	setDefault(&o.MaxRemembered, DefaultMaxRemembered)
	if o.Clock == nil {
		o.Clock = systemClock{time.Now()}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

func setDefault[T comparable](option *T, value T) {
	var zero T
	if *option == zero {
		*option = value
	}
}

type systemClock struct{ start time.Time }

func (c systemClock) WallMs() int64             { return time.Now().UnixMilli() }
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
// so what is stored is not older than any version in the batch.
func (e *Local) appendMeta(dst []byte) []byte {
	e.mu.Lock()
	last := e.last
	e.mu.Unlock()
	return encodeMeta(dst, last)
}

// Open begins a session. Not calling its Close leaks its watches.
func (e *Local) Open(o Origin) Session {
	return &session{e: e, origin: o}
}

// Stats is a moment's view for metrics.
type Stats struct {
	Keys     int64
	MaxKeys  int64
	Bytes    int64 // of keys and values
	MaxBytes int64
	Watches  int64
	Scans    int64         // that read now
	Last     hlc.Timestamp // the last version issued
	AheadMs  int64         // how far Last is ahead of the wall clock, 0 if it is not
	AheadBy  string        // the client whose timestamp has last put it more than 5 s ahead, empty if none has
	LoadedIn time.Duration // what loading the keys took at the start

	OutsideHeap int64 // bytes of memory outside of Go's heap, for records and their index

	Remembered    int64 // messages
	MaxRemembered int64
	Forgotten     int64 // messages whose time had come, since the start
}

// Stats returns what the engine holds now.
func (e *Local) Stats() Stats {
	s := Stats{
		MaxKeys:  e.o.MaxKeys,
		MaxBytes: e.o.MaxBytes,
		Watches:  e.watches.Load(),
		Scans:    int64(len(e.scans)),
		LoadedIn: e.loaded,

		OutsideHeap: e.memory.Bytes(),

		MaxRemembered: e.o.MaxRemembered,
	}
	e.mu.Lock()
	s.Keys, s.Bytes, s.Last, s.AheadBy = e.keys, e.bytes, e.last, e.aheadBy
	s.Remembered, s.Forgotten = e.remembered, e.forgotten
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
	e.forgets.stop()
}
