package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"holdfast/internal/lockrank"
)

// Defaults of Options.
const (
	DefaultBatchBytes    = 4 << 20
	DefaultCommitTimeout = 30 * time.Second
)

// FS is a file system, for those who don't import Pebble.
type FS = vfs.FS

// Options of Open. Only Dir is required.
type Options struct {
	// Dir is created, for its owner only, if it does not exist.
	Dir string
	// FS is the file system; nil is the machine's.
	FS FS
	// Logger gets Pebble's messages too; nil is slog.Default.
	Logger *slog.Logger
	// Fatal is called once, from any goroutine, when a commit has failed or
	// hangs: memory may hold what the disk does not, so the process must end.
	// The default logs one line and exits with 1. If it returns, the journal
	// accepts appends but completes nothing any more.
	Fatal func(error)
	// BatchBytes is the size of the filling batch from which Admit blocks.
	BatchBytes int
	// CommitTimeout is how long a batch may be on its way to disk before the
	// journal is given up.
	CommitTimeout time.Duration
	// Durability says when a batch counts as durable; the zero value is Sync.
	Durability Durability
	// Idle is called by the committer each time after a batch's callbacks have
	// run and the batch is complete: the place to flush what they wrote. It
	// must not block.
	Idle func()
	// Meta appends the meta record to dst and returns it. It is called by the
	// committer at each batch, after the batch was closed to appends and with no
	// lock held. See SetMeta.
	Meta func(dst []byte) []byte
	// Reserve is how many bytes of the disk are to stay free: with fewer, Low is
	// true. 0: the smaller of 256 MiB and 5 % of the disk.
	Reserve int64
	// OpenTables is about how many tables Pebble keeps open at once, each with a file
	// descriptor. 0: 1,000.
	OpenTables int
	// ReadOnly opens an existing directory for Get, Iterate and Meta only;
	// Begin panics.
	ReadOnly bool
}

// Journal is the durable side of the process: open it first, close it last.
// Without Close, what was appended and not yet acknowledged may be lost, and
// the directory stays locked until the process ends. All methods are safe for
// concurrent use.
type Journal struct {
	o     Options
	db    *pebble.DB
	cache *pebble.Cache
	lock  *dirLock
	links *linkFS
	meta  []byte

	thrifty *thriftyFS // o.FS
	uptime  *uptime
	mended  []Damage // what the start made whole

	space space

	complete       atomic.Uint64 // written under mu
	appliedTo      atomic.Uint64 // applied; written under mu
	slow           atomic.Bool   // Admit blocks: tooLarge or tooLate; written under mu
	metaFunc       atomic.Pointer[func([]byte) []byte]
	lastBackground atomic.Pointer[error] // why tables can't be written; nil: they can, as far as is known
	backgroundSaid atomic.Int64          // when that was logged, by uptime, ns; 0: never
	corrupt        sync.Map              // files that were said to be damaged, by path
	syncing        task                  // an fsync at the interval

	mu       lockrank.Mutex[lockrank.Journal]
	work     sync.Cond // on mu: the committer has something to do
	moved    sync.Cond // on mu: a batch was sealed or completed, rows were applied, the last reader has gone, or the journal failed
	filling  *batch    // guarded by mu
	dirty    bool      // guarded by mu: filling is to be sealed
	sealed   *batch    // guarded by mu: on its way to the disk, or its callbacks run; nil: none
	free     *batch    // guarded by mu: empty, to fill next; nil while one is sealed
	durable  Seq       // guarded by mu: in the log; readers see it
	applied  Seq       // guarded by mu: in Pebble
	err      error     // guarded by mu: why the journal has failed
	tooLarge bool      // guarded by mu: the filling batch is larger than BatchBytes
	tooLate  bool      // guarded by mu: late waiters keep a batch from completing
	crowded  bool      // guarded by mu: the committer waits until Pebble has taken what is pending
	closing  bool      // guarded by mu: Close was called
	closed   bool      // guarded by mu: appends are dropped
	readers  int       // guarded by mu: Get and Iterate under way

	pending      []byte  // guarded by mu: rows that are durable and not in Pebble, in order
	sparePending []byte  // guarded by applying: memory to be pending next
	merging      merging // guarded by applying: scratch

	applying lockrank.Mutex[lockrank.Applying] // held by who gives Pebble its rows
	giving   task                              // Pebble is given rows, or has to begin tables

	base    uint64        // number in the log of the batch before this run's first
	log     *writeLog     // nil: read-only
	view    pebble.Reader // the database, with what the log has beyond it if read-only
	toApply chan struct{} // a good deal is pending
	toFlush chan struct{} // the log is long
	flushed chan struct{} // a table was written

	metaNext, metaLast []byte   // the committer's
	spareWaiters       []Waiter // the committer's: memory for the next ones
	lastRows           uint32   // the committer's: of the batch that it took last
	reclaimed          Seq      // runReclaim's: up to here deletions are in tables

	running sync.WaitGroup  // what Close waits for besides the pipeline
	ending  context.Context // done when Close is called
	end     context.CancelFunc

	drained chan struct{} // closed when the committer has ended
	idle    chan struct{} // closed when all else has, too, except the watchdog
	failed  chan struct{} // closed when err is set
	full    chan struct{} // a table found no room on the disk
}

// Open opens or creates the journal in o.Dir. It fails with ErrLocked,
// ErrNewerFormat, ErrForeign, ErrBackup or ErrDamaged, each with a sentence on what to do, or with
// what Pebble or the file system say.
func Open(o Options) (*Journal, error) {
	o.setDefaults()
	return open(o, false)
}

// open opens the journal; damaged: although its log or manifest is damaged, to
// look at what is left.
func open(o Options, damaged bool) (*Journal, error) {
	j := &Journal{o: o, uptime: newUptime(), drained: make(chan struct{}), idle: make(chan struct{}), failed: make(chan struct{}), full: make(chan struct{}, 1),
		toApply: make(chan struct{}, 1), toFlush: make(chan struct{}, 1), flushed: make(chan struct{}, 1)}
	j.work.L, j.moved.L = &j.mu, &j.mu
	j.space.free.Store(-1)
	if o.Meta != nil {
		j.SetMeta(o.Meta)
	}
	var err error
	if err := refuseCopy(o.FS, o.Dir, o.ReadOnly); err != nil {
		return nil, err
	}
	if j.lock, err = lock(o.FS, o.Dir); err != nil {
		return nil, err
	}
	j.thrifty = &thriftyFS{FS: o.FS, dir: o.Dir, logger: o.Logger}
	if j.o.FS = j.thrifty; !o.ReadOnly {
		j.thrifty.keep()
	}
	if err := j.openDB(damaged); err != nil {
		j.thrifty.release()
		return nil, errors.Join(err, j.lock.Close())
	}
	j.start()
	return j, nil
}

func (o *Options) setDefaults() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.BatchBytes <= 0 {
		o.BatchBytes = DefaultBatchBytes
	}
	if o.CommitTimeout <= 0 {
		o.CommitTimeout = DefaultCommitTimeout
	}
	if o.Fatal == nil {
		logger := o.Logger
		o.Fatal = func(err error) {
			logger.Error("giving up: writes do not reach the disk", "error", plain(err))
			os.Exit(1)
		}
	}
}

// openDB opens the database, checks that it is ours, and reads the meta record.
func (j *Journal) openDB(damaged bool) error {
	o := &j.o
	if !o.ReadOnly {
		j.makeStartRoom()
	}
	exists, err := inspect(o.FS, o.Dir, j.lock)
	if err != nil {
		return err
	}
	if !damaged {
		if err := j.refuseDamage(); err != nil {
			return err
		}
	}
	if o.ReadOnly && !exists {
		return fmt.Errorf("%w: %s holds no database", ErrForeign, o.Dir)
	}
	db, err := j.openPebble()
	if err != nil {
		j.cache.Unref()
		if pebble.IsCorruptionError(err) {
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return fmt.Errorf("database in %s cannot be opened: %w", o.Dir, err)
	}
	version, err := readFormat(db, o.Dir)
	j.db = db
	if err == nil && version < formatVersion && !o.ReadOnly {
		err = j.writeFormat()
	}
	if err == nil {
		err = j.readLog(damaged)
	}
	if err == nil {
		j.meta, err = readMeta(j.view)
	}
	if err != nil {
		err = errors.Join(err, db.Close())
		j.cache.Unref()
		return err
	}
	j.metaLast = append([]byte(nil), j.meta...)
	return nil
}

// openPebble opens the database. Where a directory cannot be synced Pebble panics
// with the error.
func (j *Journal) openPebble() (db *pebble.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic in Pebble: %v", r)
		}
	}()
	j.cache = pebble.NewCache(cacheBytes)
	j.links = &linkFS{FS: j.o.FS}
	po := j.pebbleOptions()
	po.Cache = j.cache
	return pebble.Open(j.o.Dir, po)
}

// readLog reads what the log has beyond the tables: into the database, or, to change
// nothing, into a view of it. Then it begins the log anew.
func (j *Journal) readLog(damaged bool) error {
	state, err := readLogState(j.db)
	if err != nil {
		return err
	}
	found, err := recoverLog(j.o.FS, j.o.Dir, state)
	if err != nil {
		return err
	}
	if !damaged {
		if err := refusal(j.o.Dir, found.damage); err != nil {
			return err
		}
	}
	j.sayMended(found.mended)
	j.base = found.last
	if j.o.ReadOnly {
		view := j.db.NewIndexedBatch()
		j.view = view
		return j.replay(view, found)
	}
	j.view = j.db
	if err := j.replayWatched(found); err != nil {
		return err
	}
	j.log, err = j.startLog(found)
	return err
}

// replayWatched is replay into the database, which may wait for tables that find no room.
// Then it goes on in the room that was kept, or the journal fails, like a running one
// (see runSpace and runWatchdog).
func (j *Journal) replayWatched(found recovered) error {
	done := make(chan struct{})
	go func() {
		limit := j.o.CommitTimeout
		interval := max(min(spaceInterval, limit/8), time.Millisecond)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		j.uptime.watch()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				now := j.uptime.tick(interval)
				if j.stuckWithoutRoom(now) {
					j.releaseBallast(roomForTables)
				}
				if j.hangs(now, limit) {
					j.fail(fmt.Errorf("what the log has could not be written as tables within %v: is the disk full, or hanging? Make room on it and start again, nothing is lost", limit))
					return
				}
			}
		}
	}()
	err := j.replay(j.db, found)
	close(done)
	if failure := j.failure(); failure != nil { // and Fatal has returned
		return failure
	}
	return err
}

func readMeta(db pebble.Reader) ([]byte, error) {
	value, closer, err := db.Get(metaKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("meta record cannot be read: %w", err)
	}
	return append([]byte{}, value...), closer.Close()
}

const (
	memTableBytes = 12 << 20 // less on a small disk, see memTableSize
	memTables     = 6        // at the most, before writes wait
	usualTables   = 3        // under way when the disk keeps up, one of them to be used again
	// cachedBytes is what is then left of the cache for blocks of tables, bloom
	// filters above all: 10 bits for each remembered message.
	cachedBytes = 32 << 20
	// cacheBytes is the size of the cache, of which Pebble takes the memory of
	// memtables. At 32 MiB there was none left, and each look-up read its filter
	// from the disk again (50 µs in place of 3).
	cacheBytes = usualTables*memTableBytes + cachedBytes
	// tablesInL0 is how many memtables, written one after the other, make a
	// compaction. (Pebble's threshold is twice that.)
	tablesInL0 = 5
)

// pebbleOptions: a memtable for a part of a second of writes, few enough of them
// to bound memory, and bloom filters on every level, because most look-ups of
// remembered messages are for what is not there (see Probe).
//
// Without cgo, memtables and cache are on Go's heap, which doubles what is live:
// that counts when a million keys take 130 MB. What a small memtable costs
// otherwise, more compactions, is made up for by collecting more of them before
// one: 3 million SETs over a million keys, 348 MB of log, write 556 MB in all with
// five of 12 MiB and 558 MB with two of 32, which took 70 bytes more of memory for
// each key.
func (j *Journal) pebbleOptions() *pebble.Options {
	po := &pebble.Options{
		FS:                          j.links,
		Lock:                        j.lock.file,
		ReadOnly:                    j.o.ReadOnly,
		FormatMajorVersion:          pebbleFormat,
		Logger:                      pebbleLogger{j},
		DisableWAL:                  true, // see log.go
		MemTableSize:                j.memTableSize(),
		MemTableStopWritesThreshold: memTables,
		CacheSize:                   cacheBytes,
		MaxOpenFiles:                j.o.OpenTables, // 0: 1,000
		L0CompactionThreshold:       2 * tablesInL0,
		L0StopWritesThreshold:       64,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		EventListener: &pebble.EventListener{
			BackgroundError: j.backgroundError,
			DataCorruption:  j.dataCorruption,
			FlushEnd:        j.tablesWritten,
		},
	}
	for i := range po.Levels {
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return po
}

func (j *Journal) start() {
	j.filling = &batch{seq: 1}
	if j.o.ReadOnly {
		close(j.drained)
		return
	}
	j.filling.rows = j.db.NewBatch()
	j.free = &batch{rows: j.db.NewBatch()}
	j.CheckSpace()
	go j.runCommitter()
	go j.runWatchdog()
	j.ending, j.end = context.WithCancel(context.Background())
	j.running.Go(j.runSpace)
	j.running.Go(j.runPresence)
	j.running.Go(j.runReclaim)
	j.running.Go(j.runApplier)
	if j.o.Durability.mode == modeInterval {
		j.running.Go(j.runInterval)
	}
}

// Meta returns the meta record as it was found at Open, nil if there was none.
func (j *Journal) Meta() []byte { return j.meta }

// SetMeta replaces Options.Meta, for an owner that needs the journal before it
// can say what its record is. Until there is one, the record on disk stays.
func (j *Journal) SetMeta(f func(dst []byte) []byte) { j.metaFunc.Store(&f) }

// Iterate calls fn with every row lower <= key < upper in order, of a view
// that does not change meanwhile; nil bounds are open. key and value are valid
// during the call only. It sees what is durable (see WaitDurable). fn may call the journal.
func (j *Journal) Iterate(lower, upper []byte, fn func(key, value []byte) (more bool)) error {
	if err := j.beginRead(); err != nil {
		return err
	}
	defer j.endRead()
	it, err := j.view.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("journal %s: %w", j.o.Dir, err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("journal %s: %w", j.o.Dir, errors.Join(err, it.Close()))
		}
		if !fn(it.Key(), value) {
			break
		}
	}
	if err := it.Close(); err != nil {
		return fmt.Errorf("journal %s: %w", j.o.Dir, err)
	}
	return nil
}

// IterateOnce is Iterate for a start, which reads a great many rows and none of them
// twice: what it has read doesn't stay in the cache, which is empty afterwards.
func (j *Journal) IterateOnce(lower, upper []byte, fn func(key, value []byte) (more bool)) error {
	if err := j.beginRead(); err != nil {
		return err
	}
	defer j.endRead()
	release := j.cache.Reserve(cacheBytes)
	defer release()
	return j.Iterate(lower, upper, fn)
}

// Get returns a copy of a row's value, as far as it is durable.
func (j *Journal) Get(key []byte) (value []byte, found bool, err error) {
	if err := j.beginRead(); err != nil {
		return nil, false, err
	}
	defer j.endRead()
	v, closer, err := j.view.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("journal %s: %w", j.o.Dir, err)
	}
	return append([]byte{}, v...), true, closer.Close()
}

// Probe is Get for a row that most likely is not there: it appends the row's value
// to dst. Get would read a data block of the lowest level to find that out, since
// Pebble does not ask that level's bloom filters unless it is told to, and that is
// where nearly all rows are. Probe asks them all; of a hundred look-ups of what
// is not there, ninety-nine touch no data block.
//
// Unlike Get it has nothing applied, and sees only what was (see Applied): the caller
// keeps the changes that are younger.
func (j *Journal) Probe(dst, key []byte) (value []byte, found bool, err error) {
	if _, err := j.addReader(); err != nil {
		return dst, false, err
	}
	defer j.endRead()
	it, err := j.view.NewIter(&pebble.IterOptions{UseL6Filters: true})
	if err != nil {
		return dst, false, fmt.Errorf("journal %s: %w", j.o.Dir, err)
	}
	if found = seekExact(it, key); found {
		var v []byte
		v, err = it.ValueAndErr()
		dst = append(dst, v...)
	}
	if err = errors.Join(err, it.Error(), it.Close()); err != nil {
		return dst, false, fmt.Errorf("journal %s: %w", j.o.Dir, err)
	}
	return dst, found, nil
}

// seekExact positions it at the row of this key. The prefix that SeekPrefixGE
// gives to the filters is what Comparer.Split makes of the key, which with the
// default comparer is all of it.
func seekExact(it *pebble.Iterator, key []byte) bool {
	return it.SeekPrefixGE(key) && bytes.Equal(it.Key(), key)
}

// beginRead and endRead keep Close from taking the database away: Pebble
// panics on a reader that comes, or stays, after it was closed.
func (j *Journal) beginRead() error {
	behind, err := j.addReader()
	if err != nil || !behind {
		return err
	}
	if err = j.applyPending(); err != nil {
		j.endRead()
	}
	return err
}

// addReader is beginRead for a reader that can do without what is not applied; behind
// says that there is some.
func (j *Journal) addReader() (behind bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closing {
		return false, ErrClosed
	}
	j.readers++
	return j.applied < j.durable, nil
}

func (j *Journal) endRead() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.readers--; j.readers == 0 && j.closing {
		j.moved.Broadcast()
	}
}

// Close makes everything that was appended before it durable, runs its
// callbacks, and closes the database. Appends that come later are dropped. If
// the journal has failed, Close returns that error and leaves the directory as
// it is, for the next start to recover. Not to be called from a callback.
func (j *Journal) Close() error {
	j.mu.Lock()
	if j.closing {
		j.mu.Unlock()
		return ErrClosed
	}
	j.closing = true
	j.work.Signal()
	j.mu.Unlock()
	if j.end != nil {
		j.end()
	}
	select {
	case <-j.drained:
	case <-j.failed: // its goroutines may hang in Pebble for ever
	}
	j.mu.Lock()
	for j.err == nil && j.readers > 0 {
		j.moved.Wait()
	}
	j.mu.Unlock()
	go func() {
		j.running.Wait()
		close(j.idle)
	}()
	select {
	case <-j.idle:
	case <-j.failed:
	}
	if err := j.failure(); err != nil {
		return err
	}
	defer j.thrifty.release()
	defer j.cache.Unref()
	if j.log == nil {
		return errors.Join(j.view.(*pebble.Batch).Close(), j.db.Close(), j.lock.Close())
	}
	return errors.Join(j.log.close(), j.db.Close(), j.lock.Close())
}
