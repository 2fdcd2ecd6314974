package journal

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
)

// openDB opens the database, checks that it is ours, and reads the meta record.
func (j *Journal) openDB(damaged bool) error {
	o := &j.o
	if !o.ReadOnly {
		j.space.FreeForStart()
	}
	exists, err := inspect(o.FS, o.Dir, j.lock)
	if err != nil {
		return err
	}
	if !damaged && o.Log == nil { // another log is compared with the database by its owner
		if err := j.refuseDamage(); err != nil {
			return err
		}
	}
	if o.ReadOnly && !exists {
		return fmt.Errorf("%w: %s holds no database", ErrForeign, o.Dir)
	}
	if !exists {
		if err := j.space.CheckRoom(); err != nil {
			return err
		}
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
		j.beginClose()
		j.awaitReaders()
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
	j.links = &datadir.LinkFS{FS: j.o.FS}
	po := j.pebbleOptions()
	po.Cache = j.cache
	return pebble.Open(j.o.Dir, po)
}

// readLog reads what the log has beyond the tables: into the database, or, to change
// nothing, into a view of it. Then it begins the log anew.
func (j *Journal) readLog(damaged bool) error {
	number, err := readApplied(j.db.NewIter(nil))
	if err != nil {
		return err
	}
	j.number = number // a checkpoint asks before the first batch comes
	if j.log, err = j.openLog(damaged); err != nil {
		return err
	}
	if j.o.ReadOnly {
		view := j.db.NewIndexedBatch()
		j.view = view
		return j.replay(view)
	}
	j.view = j.db
	if err := j.replayWatched(); err != nil {
		return err
	}
	err = j.log.Begin()
	j.writing = err == nil
	return err
}

// replay gives to what the log has beyond the tables.
func (j *Journal) replay(to pebble.Writer) error {
	j.replayed.to = to
	err := j.log.Replay(func(number uint64, more []byte) error {
		j.applying.Lock()
		r := &j.replayed
		r.rows, r.last = append(r.rows, more...), number
		enough := len(r.rows) >= applyBytes
		j.applying.Unlock()
		if enough {
			return j.applyReplayed()
		}
		return nil
	})
	if err == nil {
		err = j.applyReplayed()
	}
	j.applying.Lock()
	defer j.applying.Unlock()
	j.replayed = replayed{}
	return err
}

// replayed is what a replay has gathered, to be given to the database at once.
type replayed struct {
	to   pebble.Writer
	rows []byte
	last uint64 // the number of their last batch; 0: there are none
}

// applyReplayed gives the database what a replay has gathered.
func (j *Journal) applyReplayed() error {
	j.applying.Lock()
	defer j.applying.Unlock()
	r := &j.replayed
	if r.last == 0 {
		return nil
	}
	if err := j.apply(r.to, r.rows, r.last); err != nil {
		return fmt.Errorf("rows up to batch %d in the log: %w", r.last, err)
	}
	j.mu.Lock()
	j.number = r.last
	j.mu.Unlock()
	r.rows, r.last = r.rows[:0], 0
	return nil
}

// replayWatched is replay into the database, which may wait for tables that find no room.
// Then it goes on in the room that was kept, or the journal fails, like a running one
// (see runSpace and runWatchdog).
func (j *Journal) replayWatched() error {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer failstop.End(j.o.Logger, "the watchdog of a start")
		defer close(ended)
		limit := j.o.CommitTimeout
		interval := max(min(spaceInterval, limit/8), time.Millisecond)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		j.uptime.Watch()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				now := j.uptime.Tick(interval)
				j.trimReplayed()
				if j.stuckWithoutRoom(now) {
					j.space.ReleaseBallast(roomForTables)
				}
				if j.hangs(now, limit) {
					j.fail(fmt.Errorf("what the log has could not be written as tables within %v: is the disk full, or hanging? Make room on it and start again, nothing is lost", limit))
					return
				}
			}
		}
	}()
	err := j.replay(j.db)
	close(done)
	if j.o.Log != nil {
		<-ended // it may use the database
	}
	if failure := j.failure(); failure != nil { // and Fatal has returned
		return failure
	}
	return err
}

// trimReplayed is what the applier does, while a log is replayed that goes on for long.
func (j *Journal) trimReplayed() {
	if j.o.Log == nil {
		return
	}
	var err error
	select {
	case <-j.toFlush:
		_, err = j.db.AsyncFlush()
	case <-j.flushed:
		err = j.TrimLog()
	default:
	}
	if err != nil {
		j.fail(err)
	}
}

func readMeta(db pebble.Reader) ([]byte, error) {
	value, closer, err := db.Get(MetaKey)
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
		FS:                          datadir.NewManifestFS(j.links, j.makeRoomForManifest, j.waitsForRoom),
		Lock:                        j.lock.File(),
		ReadOnly:                    j.o.ReadOnly,
		FormatMajorVersion:          pebbleFormat,
		Logger:                      pebbleLogger{j},
		DisableWAL:                  true, // see package wal
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
	pebblefile.SetFilters(po)
	return po
}
