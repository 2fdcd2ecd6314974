package journal

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/journal/merging"
	"github.com/holdfast-mqtt/holdfast/internal/journal/uptime"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
)

// Defaults of Options.
const (
	DefaultBatchBytes    = 4 << 20
	DefaultCommitTimeout = 30 * time.Second
)

// FS is a file system, for packages that don't import Pebble.
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
	// journal is given up. Time in which tables wait for file descriptors does not count.
	CommitTimeout time.Duration
	// Durability says when a batch counts as durable; the zero value is Sync.
	Durability Durability
	// Idle is called by the committer each time after a batch's callbacks have
	// run and the batch is complete: the place to flush what they wrote. It
	// must not block.
	Idle func()
	// Meta appends the meta record to dst and returns it. It is called by the
	// committer at each batch, in their order, after the batch was closed to appends
	// and with no lock held. See SetMeta.
	Meta func(dst []byte, batch Seq) []byte
	// Reserve is how many bytes of the disk are to stay free: with fewer, Low is
	// true. 0: the smaller of 256 MiB and 5 % of the disk.
	Reserve int64
	// OpenTables is about how many tables Pebble keeps open at once, each with a file
	// descriptor. 0: 1,000.
	OpenTables int
	// SegmentBytes is how large a file of the log grows before the next one begins. 0: 8 MiB,
	// less on a small disk.
	SegmentBytes int64
	// Log opens the log; nil: that in Dir. It is called once, after the database was opened.
	Log func(LogOptions) (Log, error)
	// Row gives a row that the database has to keep with AppliedKey, for the number that it
	// says; its value is appended to dst. nil: there is none.
	Row func(dst []byte, number uint64) (key, value []byte, err error)
	// New tells of some rows that none of their key is in the database, or that its deletion was
	// appended before: if such a row is deleted soon, the database gets neither (see merging). It
	// is called by one goroutine at a time. nil: there are none.
	New func(key, value []byte) bool
	// Progress, if not nil, is called by Iterate each time it has read another ProgressRows rows,
	// with how many it has read since Open. It may be called by several goroutines at a time.
	Progress func(rows int64)
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
	lock  *datadir.Lock
	links *datadir.LinkFS
	meta  []byte

	descriptors *datadir.ReservingFS // o.FS
	uptime      *uptime.Clock
	mended      []datadir.Damage // what the start made whole

	space *datadir.Space

	complete       atomic.Uint64 // written under mu
	appliedTo      atomic.Uint64 // applied; written under mu
	slow           atomic.Bool   // Admit blocks: tooLarge or tooLate; written under mu
	metaFunc       atomic.Pointer[func([]byte, Seq) []byte]
	lastBackground atomic.Pointer[error] // why tables can't be written; nil: they can, as far as is known
	backgroundSaid atomic.Int64          // when that was logged, by uptime.Monotonic, ns; 0: never
	corrupt        sync.Map              // files that were said to be damaged, by path
	syncing        uptime.Task           // an fsync at the interval
	rowsRead       atomic.Int64          // by Iterate, in steps of ProgressRows

	mu             lockrank.Mutex[lockrank.Journal]
	work           sync.Cond // on mu: the committer has something to do
	moved          sync.Cond // on mu: a batch was sealed or completed, rows were applied, the last reader has gone, or the journal failed
	filling        *batch    // guarded by mu
	dirty          bool      // guarded by mu: filling is to be sealed
	sealed         *batch    // guarded by mu: on its way to the disk, or its callbacks run; nil: none
	free           *batch    // guarded by mu: empty, to fill next; nil while one is sealed
	durable        Seq       // guarded by mu: in the log; readers see it
	number         uint64    // guarded by mu: of durable, in the log
	applied        Seq       // guarded by mu: in Pebble
	err            error     // guarded by mu: why the journal has failed
	tooLarge       bool      // guarded by mu: the filling batch is larger than BatchBytes
	tooLate        bool      // guarded by mu: late waiters keep a batch from completing
	waitsForPebble bool      // guarded by mu: the committer waits until Pebble has taken what is pending
	closing        bool      // guarded by mu: Close was called
	closed         bool      // guarded by mu: appends are dropped
	readers        int       // guarded by mu: Get and Iterate under way

	pending      []byte          // guarded by mu: rows that are durable and not in Pebble, in order
	sparePending []byte          // guarded by applying: memory to be pending next
	merging      merging.Merging // guarded by applying

	applying lockrank.Mutex[lockrank.Applying] // held while Pebble is given rows
	replayed replayed                          // guarded by applying
	giving   uptime.Task                       // Pebble is given rows, or has to begin tables

	log     Log
	writing bool          // the log has begun
	view    pebble.Reader // the database, with what the log has beyond it if read-only
	toApply chan struct{} // more than applyBytes are pending
	toFlush chan struct{} // the log is long
	flushed chan struct{} // a table was written

	metaNext, metaLast []byte   // the committer's
	spareWaiters       []Waiter // the committer's: memory for the next ones
	lastRows           uint32   // the committer's: of the batch that it took last
	gathering          gathering
	reclaimed          Seq // runReclaim's: up to here deletions are in tables

	running sync.WaitGroup  // what Close waits for besides the pipeline
	ending  context.Context // done when Close is called
	end     context.CancelFunc

	drained chan struct{} // closed when the committer has ended
	idle    chan struct{} // closed when all else has, too, except the watchdog
	failed  chan struct{} // closed when err is set
	over    chan struct{} // see Over
	full    chan struct{} // a table found no room on the disk

	endWaits func() // closes over

	batchBytes, fsyncs *histogram.Histogram
}

// Figures are what the journal has counted since the start.
type Figures struct {
	BatchBytes histogram.Snapshot // bytes of each batch
	Fsyncs     histogram.Snapshot // nanoseconds of each fsync of the log
}

// Figures gives them.
func (j *Journal) Figures() Figures {
	if elsewhere, is := j.log.(FsyncTimer); is {
		return Figures{j.batchBytes.Read(), elsewhere.Fsyncs()}
	}
	return Figures{j.batchBytes.Read(), j.fsyncs.Read()}
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
	j := &Journal{o: o, uptime: uptime.New(), drained: make(chan struct{}), idle: make(chan struct{}), failed: make(chan struct{}), over: make(chan struct{}), full: make(chan struct{}, 1), batchBytes: histogram.New(64), fsyncs: histogram.New(1000),
		toApply: make(chan struct{}, 1), toFlush: make(chan struct{}, 1), flushed: make(chan struct{}, 1)}
	j.work.L, j.moved.L = &j.mu, &j.mu
	j.merging.New = o.New
	j.ending, j.end = context.WithCancel(context.Background())
	j.endWaits = sync.OnceFunc(func() { close(j.over) })
	if o.Meta != nil {
		j.SetMeta(o.Meta)
	}
	var err error
	if err := refuseCopy(o.FS, o.Dir, o.ReadOnly); err != nil {
		return nil, err
	}
	if j.lock, err = datadir.Acquire(o.FS, o.Dir); err != nil {
		return nil, err
	}
	j.descriptors = datadir.NewReservingFS(o.FS, o.Dir, o.Logger)
	if j.o.FS = j.descriptors; !o.ReadOnly {
		j.descriptors.Fill()
	}
	j.space = datadir.NewSpace(j.o.FS, o.Dir, o.Reserve, o.Logger)
	if !o.ReadOnly {
		err = j.space.CheckReserve()
	}
	if err == nil {
		err = j.openDB(damaged)
	}
	if err != nil {
		j.descriptors.Release()
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
			logger.Error("giving up: writes do not reach the disk", "error", pebblefile.PlainError(err))
			os.Exit(1)
		}
	}
}

func (j *Journal) start() {
	j.filling = &batch{seq: 1}
	if j.o.ReadOnly {
		close(j.drained)
		return
	}
	j.filling.rows = j.db.NewBatch()
	j.free = &batch{rows: j.db.NewBatch()}
	j.gathering = newGathering(j.o.Log != nil)
	j.CheckSpace()
	go j.runCommitter()
	go j.runWatchdog()
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
func (j *Journal) SetMeta(f func(dst []byte, batch Seq) []byte) { j.metaFunc.Store(&f) }

// Close makes everything that was appended before it durable, runs its
// callbacks, and closes the database. Appends that come later are dropped. If
// the journal has failed, Close returns that error and leaves the directory as
// it is, for the next start to recover; with ErrLost it closes the database, which can be
// opened again. Not to be called from a callback.
func (j *Journal) Close() error {
	if !j.beginClose() {
		return ErrClosed
	}
	j.awaitEnd(j.drained)
	j.awaitReaders()
	go func() {
		j.running.Wait()
		close(j.idle)
	}()
	j.awaitEnd(j.idle)
	j.endWaits()
	if err := j.failure(); err != nil && !errors.Is(err, ErrLost) {
		return err
	}
	defer j.descriptors.Release()
	defer j.cache.Unref()
	err := j.log.Close()
	if view, isBatch := j.view.(*pebble.Batch); isBatch {
		err = errors.Join(err, view.Close())
	}
	return errors.Join(err, j.db.Close(), j.lock.Close())
}

// beginClose keeps readers out; false: the journal is being closed already.
func (j *Journal) beginClose() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closing {
		return false
	}
	j.closing = true
	j.work.Signal()
	j.end()
	return true
}

// awaitReaders waits for those that have come before, unless the journal has failed.
func (j *Journal) awaitReaders() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for (j.err == nil || errors.Is(j.err, ErrLost)) && j.readers > 0 {
		j.moved.Wait()
	}
}

// awaitEnd waits for done, or until the journal has failed so that its goroutines may hang in
// Pebble forever.
func (j *Journal) awaitEnd(done <-chan struct{}) {
	select {
	case <-done:
	case <-j.failed:
		if errors.Is(j.failure(), ErrLost) {
			<-done
		}
	}
}
