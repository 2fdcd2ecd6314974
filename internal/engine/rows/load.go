package rows

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
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

// Load reads every key of the journal. Several goroutines call add with a key and its entry,
// both good during the call; each key once, in any order.
func Load(j *journal.Journal, add func(key []byte, entry *statestore.Entry)) (all Loaded, err error) {
	n := runtime.GOMAXPROCS(0)
	errs, parts := make([]error, n), make([]Loaded, n)
	full, empty := make(chan *chunk, n), make(chan *chunk, 2*n+1)
	for range cap(empty) {
		empty <- &chunk{}
	}
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			nodes := map[string]string{} // few node IDs, many entries: one copy of each
			for c := range full {
				if errs[i] == nil {
					errs[i] = c.each(nodes, &parts[i], add)
				}
				c.reset()
				empty <- c
			}
		})
	}
	filling := <-empty
	err = j.IterateOnce([]byte(KeyPrefix), []byte(AfterKeys), func(row, value []byte) bool {
		filling.add(row[len(KeyPrefix):], value)
		if len(filling.bytes) >= chunkBytes {
			full <- filling
			filling = <-empty
		}
		return true
	})
	full <- filling
	close(full)
	running.Wait()
	for _, l := range parts {
		all.Keys += l.Keys
		all.Bytes += l.Bytes
		if l.Last.Compare(all.Last) > 0 {
			all.Last = l.Last
		}
	}
	return all, errors.Join(append(errs, err)...)
}

// Loaded is what was loaded.
type Loaded struct {
	Keys, Bytes int64         // bytes are those of keys and values
	Last        hlc.Timestamp // the latest version
}

// each calls add for each row, and gives the first that cannot be read.
func (c *chunk) each(nodes map[string]string, l *Loaded, add func(key []byte, entry *statestore.Entry)) error {
	var entry statestore.Entry
	begin := 0
	for i := 0; i < len(c.ends); i += 2 {
		key, value := c.bytes[begin:c.ends[i]], c.bytes[c.ends[i]:c.ends[i+1]]
		begin = c.ends[i+1]
		if err := DecodeEntry(value, nodes, &entry); err != nil {
			return fmt.Errorf("the record of key %q cannot be read: %w", key, err)
		}
		add(key, &entry)
		l.Keys++
		l.Bytes += int64(len(key)) + int64(len(entry.Value))
		if entry.Version.Compare(l.Last) > 0 {
			l.Last = entry.Version
		}
	}
	return nil
}
