package snapshot

import (
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Sums remembers the SHA-256 of files that were sent. When a snapshot was cut off, the next one names the
// files that the other node has already, without reading all of them again. One Send at a time uses it.
// The zero value knows none.
type Sums struct{ known map[string]knownSum }

// knownSum is that of a file which has not changed since: a database writes a table once, and gives its name
// to no other file. One that was received from another node has another time.
type knownSum struct {
	size    int64
	changed time.Time
	sum     []byte
}

// begin forgets the files that are not to be sent any more.
func (s *Sums) begin(files []File) {
	next := map[string]knownSum{}
	for _, f := range files {
		if k, known := s.known[f.Name]; known {
			next[f.Name] = k
		}
	}
	s.known = next
}

// of is the SHA-256 of a file, which is read if it is not known.
func (s *Sums) of(fsys vfs.FS, path, name string) ([]byte, error) {
	info, err := fsys.Stat(path)
	if err != nil {
		return nil, err
	}
	if k, known := s.known[name]; known && k.size == info.Size() && k.changed.Equal(info.ModTime()) {
		return k.sum, nil
	}
	sum, err := sumFile(fsys, path)
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
