package wal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// State is what the tables say of the log.
type State struct {
	Mask
	Applied uint64 // up to this batch the tables have the rows
	// Logged: there is a log, and its last segment always has room ahead. It is false in a
	// directory that was last written by an older program.
	Logged bool
}

// ReadState reads the log's rows in a database that has the rows of all batches up to
// applied.
func ReadState(db pebble.Reader, applied uint64) (s State, err error) {
	s.Applied = applied
	if s.Mask, err = ReadMask(db); err != nil {
		return s, err
	}
	_, closer, err := db.Get(LoggedKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("%s cannot be read: %w", LoggedKey, err)
	}
	s.Logged = true
	return s, closer.Close()
}

// ReadMask reads the directory's mask; 0 in a database of version 1, which has no log of
// this package.
func ReadMask(db pebble.Reader) (Mask, error) {
	value, closer, err := db.Get(MaskKey)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%s cannot be read: %w", MaskKey, err)
	}
	defer closer.Close()
	if len(value) != 8 {
		return 0, fmt.Errorf("the row %s has %d bytes", MaskKey, len(value))
	}
	return Mask(binary.LittleEndian.Uint64(value)), nil
}

// NewMask returns a random value for the row MaskKey.
func NewMask() []byte {
	mask := make([]byte, 8)
	_, _ = rand.Read(mask) // does not fail
	return mask
}
