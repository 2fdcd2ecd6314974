package engine

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Loading
//
// A start reads every key. Reading the rows in their order is one goroutine's
// work, and takes less than half of the time; putting them
// into their shards is most of it, and is done by as many goroutines as
// there are processors. Rows travel in chunks, as a row is too little work to be
// passed on by itself. (A start with 1,000,000 keys on two cores: 2.5 s with one
// goroutine, 1.7 s like this.)

// chunkBytes is about how many bytes of rows are passed on at once.
const chunkBytes = 64 << 10

// chunk holds rows, one after the other: key, value.
type chunk struct {
	bytes []byte
	ends  []int // of each key and each value
}

func (c *chunk) reset() { c.bytes, c.ends = c.bytes[:0], c.ends[:0] }

func (c *chunk) add(key, value []byte) {
	c.bytes = append(c.bytes, key...)
	c.ends = append(c.ends, len(c.bytes))
	c.bytes = append(c.bytes, value...)
	c.ends = append(c.ends, len(c.bytes))
}

// loader makes entries of chunks; each goroutine has its own.
type loader struct {
	e     *Local
	nodes map[string]string // few node IDs, many entries: one copy of each
	entry statestore.Entry  // the one being added
	keys  int64
	bytes int64
	last  hlc.Timestamp
	err   error // the first row that cannot be read
}

// load reads every key and the last version.
func (e *Local) load() (err error) {
	if e.last, err = rows.DecodeMeta(e.journal.Meta()); err != nil {
		return err
	}
	loaders := make([]loader, runtime.GOMAXPROCS(0))
	full, empty := make(chan *chunk, len(loaders)), make(chan *chunk, 2*len(loaders)+1)
	for range cap(empty) {
		empty <- &chunk{}
	}
	var running sync.WaitGroup
	for i := range loaders {
		l := &loaders[i]
		*l = loader{e: e, nodes: map[string]string{}}
		running.Go(func() {
			for c := range full {
				l.take(c)
				c.reset()
				empty <- c
			}
		})
	}
	filling := <-empty
	err = e.journal.IterateOnce([]byte(rows.KeyPrefix), []byte(rows.AfterKeys), func(row, value []byte) bool {
		filling.add(row[len(rows.KeyPrefix):], value)
		if len(filling.bytes) >= chunkBytes {
			full <- filling
			filling = <-empty
		}
		return true
	})
	full <- filling
	close(full)
	running.Wait()
	for i := range loaders {
		err = errors.Join(err, e.merge(&loaders[i]))
	}
	if err != nil {
		return fmt.Errorf("loading the keys: %w", err)
	}
	return nil
}

// take puts the rows of a chunk into their shards.
func (l *loader) take(c *chunk) {
	if l.err != nil {
		return
	}
	begin := 0
	for i := 0; i < len(c.ends); i += 2 {
		key, value := c.bytes[begin:c.ends[i]], c.bytes[c.ends[i]:c.ends[i+1]]
		begin = c.ends[i+1]
		if err := rows.DecodeEntry(value, l.nodes, &l.entry); err != nil {
			l.err = fmt.Errorf("the record of key %q cannot be read: %w", key, err)
			return
		}
		l.add(key, &l.entry)
	}
}

func (l *loader) add(key []byte, entry *statestore.Entry) {
	sh, hash := l.e.shard(key)
	sh.mu.Lock()
	r := sh.put(table.Record{}, key, hash, entry, hlc.Timestamp{})
	if entry.DeadlineMs != 0 {
		r.SetByWall()
	}
	sh.mu.Unlock()
	l.keys++
	l.bytes += size(key, entry)
	if entry.Version.Compare(l.last) > 0 {
		l.last = entry.Version
	}
}

// merge adds what a loader has counted.
func (e *Local) merge(l *loader) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.quota.Keys += l.keys
	e.quota.Bytes += l.bytes
	if l.last.Compare(e.last) > 0 {
		e.last = l.last
	}
	return l.err
}
