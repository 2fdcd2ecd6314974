package transfer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/cli/input"
	"github.com/holdfast-mqtt/holdfast/internal/rdb"
)

// lineError is what is wrong with one line. Those behind it can be read.
type lineError struct {
	line int64
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// lines reads a file of export.
func lines(in io.Reader) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		n := int64(0)
		for line, err := range input.Lines(in, false, input.MaxBytes) {
			n++
			var e entry
			if err == nil {
				if e, err = readRecord(line); err != nil {
					err = &lineError{n, err}
				}
			}
			e.line = n
			if !yield(e, err) {
				return
			}
		}
	}
}

// redisKeys reads a dump of Redis, of which it imports the strings of one database. Each key counts
// as a line. What is longer than most bytes is not read.
func redisKeys(in io.Reader, db, most uint64) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		n := int64(0)
		for k, err := range rdb.Read(in, rdb.Options{Size: sizeOf(in), Most: most}) {
			n++
			e := entry{line: n, key: string(k.Key), value: k.Value, expires: k.Expires}
			switch {
			case err != nil:
			case k.DB != db:
				e.skip, e.remark = true, "of other databases left out (--redis-db)"
			case k.Type != rdb.String:
				e.skip, e.remark, e.named = true, fmt.Sprintf("of the type %s left out", k.Type), true
			case k.TooLong > 0 && k.Key == nil:
				e.wrong = fmt.Errorf("its key has %d bytes, and the server takes packets of %d bytes at most (--max-packet-size)", k.TooLong, most)
			case k.TooLong > 0:
				e.wrong = fmt.Errorf("%s: its value has %d bytes, and the server takes packets of %d bytes at most (--max-packet-size)", e.name(), k.TooLong, most)
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// sizeOf is the size of a file, -1 of what is none: a pipe.
func sizeOf(in io.Reader) int64 {
	if file, ok := in.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			return info.Size()
		}
	}
	return -1
}

// etcdKeys reads what etcdctl prints, or what etcd's JSON gateway answers to /v3/kv/range: one object
// with a list of keys, of which each counts as a line. They differ in how they write a lease: as a
// number, and as a string.
func etcdKeys(in io.Reader) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		d := json.NewDecoder(in)
		if err := findList(d, "kvs"); err != nil {
			yield(entry{}, fmt.Errorf("not what etcdctl get --write-out json prints: %w", err))
			return
		}
		for n := int64(1); d.More(); n++ {
			var kv struct {
				Key, Value []byte
				Lease      json.RawMessage
			}
			err := d.Decode(&kv)
			if err != nil {
				err = fmt.Errorf("entry %d: %w", n, err)
			}
			e := entry{line: n, key: string(kv.Key), value: kv.Value}
			if lease := strings.Trim(string(kv.Lease), `"`); lease != "" && lease != "0" {
				e.remark = "without the expiry of a lease, which etcd does not print"
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
		if _, err := d.Token(); err != nil {
			yield(entry{}, fmt.Errorf("the list of keys is cut off: %w", err))
		}
	}
}

// findList reads to behind the [ of a list that the object has under a name. An object
// without it has an empty list.
func findList(d *json.Decoder, name string) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(errors.New("no JSON object"), err)
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		if t == name {
			if t, err := d.Token(); err != nil || t != json.Delim('[') {
				return errors.Join(fmt.Errorf("%s is not a list", name), err)
			}
			return nil
		}
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil {
			return err
		}
	}
	return nil
}

// block is what is sent at a time: some keys, each once, or some retained messages, that follow each
// other in the file.
type block []entry

// Bounds of a block of keys, and of one of messages. A block has one entry at least.
const (
	blockKeys     = 64
	blockMessages = 64
	blockBytes    = 256 << 10 // of keys and values, or of the lines of messages
	keyOverhead   = 128       // bytes of a packet that a key takes besides, about
)

// isMessages says whether the block has messages.
func (b block) isMessages() bool { return b[0].message != nil }

// last is the last line of the block.
func (b block) last() int64 { return b[len(b)-1].line }

// sizeBytes is what the block holds of the file.
func (b block) sizeBytes() (n int) {
	for i := range b {
		n += len(b[i].key) + len(b[i].value) + len(b[i].bytes)
	}
	return n
}

// blocks puts entries behind the first n lines together, keys of up to mostBytes. The same lines make the
// same blocks of messages.
func blocks(entries iter.Seq2[entry, error], n int64, mostBytes int) iter.Seq2[block, error] {
	return func(yield func(block, error) bool) {
		var b block
		bytes := 0
		keys := make(map[string]struct{}, blockKeys) // of b
		flush := func() bool {
			full := b
			b, bytes = nil, 0
			clear(keys)
			return len(full) == 0 || yield(full, nil)
		}
		for e, err := range entries {
			var at *lineError
			switch {
			case err == nil && e.line <= n, errors.As(err, &at) && at.line <= n:
				continue
			case err != nil:
				if !flush() || !yield(nil, err) {
					return
				}
				continue
			case e.wrong != nil:
				if !flush() || !yield(block{e}, nil) {
					return
				}
				continue
			}
			most, size, limit := blockKeys, len(e.key)+len(e.value)+keyOverhead, mostBytes
			_, again := keys[e.key]
			if e.message != nil {
				most, size, limit, again = blockMessages, len(e.bytes), blockBytes, false
			}
			full := len(b) == most || bytes+size > limit || again
			if len(b) > 0 && (full || b.isMessages() != (e.message != nil)) && !flush() {
				return
			}
			if b == nil {
				b = make(block, 0, most)
			}
			b, bytes = append(b, e), bytes+size
			if e.message == nil {
				keys[e.key] = struct{}{}
			}
		}
		flush()
	}
}
