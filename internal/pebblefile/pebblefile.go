// Package pebblefile reads the files of a Pebble database by themselves: a table, a manifest,
// or all of them without a change. Package journal looks at a database before it opens it,
// and package backup at one that is damaged.
package pebblefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
)

// OpenReadOnly opens a database for reading only. tables: it fails if a table is missing.
func OpenReadOnly(fsys vfs.FS, dir string, lock *datadir.Lock, tables bool) (*pebble.DB, error) {
	return pebble.Open(dir, &pebble.Options{
		FS: fsys, ReadOnly: true, Logger: Silent{}, Lock: lock.File(), DisableConsistencyCheck: !tables,
		EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}}, // an error says so too
	})
}

// OpenTable opens a table by itself.
func OpenTable(fsys vfs.FS, path string) (*sstable.Reader, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	po := &pebble.Options{}
	SetFilters(po)
	po.EnsureDefaults()
	r, err := sstable.NewReader(context.Background(), readable, po.MakeReaderOptions())
	if err != nil {
		return nil, errors.Join(err, readable.Close())
	}
	return r, nil
}

// ReadsToEnd says whether all records of a manifest match their checksums.
func ReadsToEnd(fsys vfs.FS, path string) (bool, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	for r := record.NewReader(f, 0); ; {
		next, err := r.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, next)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return true, nil
		case record.IsInvalidRecord(err):
			return false, nil
		default:
			return false, fmt.Errorf("%s cannot be read: %w", fsys.PathBase(path), err)
		}
	}
}

// PlainError is an error's text without what Pebble's errors carry for machines.
func PlainError(err error) string {
	return strings.ReplaceAll(err.Error(), "\n<corruption detail carrier>", "")
}

// SetFilters has tables get bloom filters on every level.
func SetFilters(po *pebble.Options) {
	for i := range po.Levels {
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
}

// Silent drops the messages of a database that is only looked at.
type Silent struct{}

func (Silent) Infof(string, ...any)  {}
func (Silent) Errorf(string, ...any) {}

func (Silent) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
