package snapshot

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"io"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// SumKind is how whole files are compared. Chunks have checksums of their own, and tables as well, which the
// receiver verifies: what is left is a file that lacks a chunk, or is another one of the same name and size.
type SumKind string

const (
	// SHA256 is what programs know that do not say in their first answer which sums they know.
	SHA256 SumKind = ""
	// CRC is a CRC-32C and a CRC-32 (IEEE), 64 bits together. They take the leader a tenth of the time.
	CRC SumKind = "crc"
)

func (k SumKind) new() hash.Hash {
	if k == CRC {
		return &crcs{}
	}
	return sha256.New()
}

// crcs computes both sums of CRC.
type crcs struct{ castagnoli, ieee uint32 }

func (c *crcs) Write(p []byte) (int, error) {
	c.castagnoli = crc32.Update(c.castagnoli, castagnoli, p)
	c.ieee = crc32.Update(c.ieee, crc32.IEEETable, p)
	return len(p), nil
}

func (c *crcs) Sum(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, c.castagnoli)
	return binary.LittleEndian.AppendUint32(b, c.ieee)
}

func (c *crcs) Reset()         { *c = crcs{} }
func (c *crcs) Size() int      { return 8 }
func (c *crcs) BlockSize() int { return 1 }

func sumFile(fsys vfs.FS, path string, kind SumKind) ([]byte, error) {
	f, err := fsys.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return nil, err
	}
	h := kind.new()
	_, err = io.Copy(h, f)
	return h.Sum(nil), errors.Join(err, f.Close())
}

// Sums remembers the sums of files that were sent. When a snapshot was cut off, the next one names the
// files that the other node has already, without reading all of them again. One Send at a time uses it.
// The zero value knows none.
type Sums struct {
	kind  SumKind
	known map[string]knownSum
}

// knownSum is that of a file which has not changed since: a database writes a table once, and gives its name
// to no other file. One that was received from another node has another time.
type knownSum struct {
	size    int64
	changed time.Time
	sum     []byte
}

// begin forgets the files that are not to be sent any more, and sums of other kinds.
func (s *Sums) begin(kind SumKind, files []File) {
	next := map[string]knownSum{}
	for _, f := range files {
		if k, known := s.known[f.Name]; known && s.kind == kind {
			next[f.Name] = k
		}
	}
	s.kind, s.known = kind, next
}

// of is the sum of a file, which is read if that is not known.
func (s *Sums) of(fsys vfs.FS, path, name string) ([]byte, error) {
	info, err := fsys.Stat(path)
	if err != nil {
		return nil, err
	}
	if k, known := s.known[name]; known && k.size == info.Size() && k.changed.Equal(info.ModTime()) {
		return k.sum, nil
	}
	sum, err := sumFile(fsys, path, s.kind)
	if err == nil {
		s.known[name] = knownSum{info.Size(), info.ModTime(), sum}
	}
	return sum, err
}

// note notes what was computed of an open file as it was sent.
func (s *Sums) note(f vfs.File, name string, sum []byte) {
	if info, err := f.Stat(); err == nil {
		s.known[name] = knownSum{info.Size(), info.ModTime(), sum}
	}
}
