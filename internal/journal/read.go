package journal

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// ProgressRows is after how many rows Options.Progress is called.
const ProgressRows = 1024

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
	rows := 0
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("journal %s: %w", j.o.Dir, errors.Join(err, it.Close()))
		}
		if !fn(it.Key(), value) {
			break
		}
		if rows++; rows%ProgressRows == 0 && j.o.Progress != nil {
			j.o.Progress(j.rowsRead.Add(ProgressRows))
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
	err = j.ProbeAll([][]byte{key}, func(_ int, v []byte) { dst, found = append(dst, v...), true })
	return dst, found && err == nil, err
}

// ProbeAll is Probe for several rows, by one iterator, which is faster when they are in order. It
// calls found for each that is there, with its place in keys and its value, valid during the call
// only.
func (j *Journal) ProbeAll(keys [][]byte, found func(i int, value []byte)) error {
	if _, err := j.addReader(); err != nil {
		return err
	}
	defer j.endRead()
	it, err := j.view.NewIter(&pebble.IterOptions{UseL6Filters: true})
	if err != nil {
		return fmt.Errorf("journal %s: %w", j.o.Dir, err)
	}
	for i := 0; i < len(keys) && err == nil; i++ {
		if seekExact(it, keys[i]) {
			var v []byte
			if v, err = it.ValueAndErr(); err == nil {
				found(i, v)
			}
		}
		err = errors.Join(err, it.Error())
	}
	if err = errors.Join(err, it.Close()); err != nil {
		return fmt.Errorf("journal %s: %w", j.o.Dir, err)
	}
	return nil
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
