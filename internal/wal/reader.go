package wal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrGone: the log does not have a batch, or not any more.
var ErrGone = errors.New("the batch is not in the log")

// A Reader reads batches back from the files of a log that is being written. To go on where
// it has ended costs it nothing; otherwise it searches a segment from its beginning. One
// goroutine at a time uses it, beside those that use the Log. Close it.
type Reader struct {
	l      *Log
	f      vfs.File
	r      *bufio.Reader
	next   uint64 // the batch that r is at
	header [FrameHeader]byte
	frame  []byte
}

// readerBytes is how much a Reader reads from a file at a time.
const readerBytes = 64 << 10

// NewReader makes a reader of a log that has begun.
func (l *Log) NewReader() *Reader { return &Reader{l: l} }

// Read calls fn with the batches from number on, in their order, until fn returns false. rows
// are valid until fn returns. It fails with ErrGone if a batch was trimmed or is not yet
// written, or with what the file system says.
func (r *Reader) Read(number uint64, fn func(number uint64, rows []byte) bool) error {
	for sought := false; ; {
		if r.f == nil || r.next != number {
			if err := r.seek(number); err != nil {
				return err
			}
			sought = true
		}
		rows, err := r.read()
		if err != nil {
			// What was read ahead may have been written since, or the next batch is in the
			// next segment.
			err = errors.Join(err, r.Close())
			if !sought {
				continue
			}
			return err
		}
		if sought = false; !fn(number, rows) {
			return nil
		}
		number++
	}
}

// seek opens the segment with a batch and goes to it.
func (r *Reader) seek(number uint64) error {
	if err := r.Close(); err != nil {
		return err
	}
	fsys := r.l.o.FS
	r.l.mu.Lock()
	var s segment
	found := false
	for _, candidate := range r.l.segments {
		if candidate.first <= number {
			s, found = candidate, true
		}
	}
	r.l.mu.Unlock()
	if !found {
		return fmt.Errorf("%w: batch %d", ErrGone, number)
	}
	f, err := fsys.Open(fsys.PathJoin(r.l.o.Dir, s.name()), vfs.SequentialReadsOption)
	if err != nil {
		return fmt.Errorf("%w: batch %d: %w", ErrGone, number, err)
	}
	r.f, r.next = f, s.first
	if r.r == nil {
		r.r = bufio.NewReaderSize(nil, readerBytes)
	}
	r.r.Reset(f)
	for r.next < number {
		length, err := r.readHeader()
		if err == nil {
			_, err = r.r.Discard(length)
		}
		if err != nil {
			return errors.Join(r.gone(err), r.Close())
		}
		r.next++
	}
	return nil
}

// readHeader reads the header of the frame of batch next, and returns how long its rows are.
func (r *Reader) readHeader() (length int, err error) {
	if _, err := io.ReadFull(r.r, r.header[:]); err != nil {
		return 0, err
	}
	length = int(binary.LittleEndian.Uint32(r.header[8:]))
	if n, synced := r.l.mask.numbers(r.header[:]); n != r.next || synced >= n || length < 0 {
		return 0, errors.New("another frame is in its place")
	}
	return length, nil
}

// read reads the rows of batch next, which are valid until the next read.
func (r *Reader) read() ([]byte, error) {
	length, err := r.readHeader()
	if err != nil {
		return nil, r.gone(err)
	}
	if cap(r.frame) > maxKeptFrame && length <= maxKeptFrame {
		r.frame = nil
	}
	r.frame = append(r.frame[:0], r.header[:]...)
	for rest := length; rest > 0; { // in parts: a damaged length must not ask for all memory
		n := min(rest, maxKeptFrame)
		at := len(r.frame)
		r.frame = append(r.frame, make([]byte, n)...)
		if _, err := io.ReadFull(r.r, r.frame[at:]); err != nil {
			return nil, r.gone(err)
		}
		rest -= n
	}
	if sums(r.frame[8:]) != binary.LittleEndian.Uint64(r.frame) {
		return nil, r.gone(errors.New("its checksum is wrong"))
	}
	r.next++
	return r.frame[FrameHeader:], nil
}

func (r *Reader) gone(why error) error {
	return fmt.Errorf("%w: batch %d: %w", ErrGone, r.next, why)
}

// Close closes the file that is open. The reader may be used again.
func (r *Reader) Close() (err error) {
	if r.f != nil {
		err = r.f.Close()
		r.f = nil
	}
	return err
}
