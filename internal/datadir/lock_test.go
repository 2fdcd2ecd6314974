//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The directory stays locked when its file LOCK is deleted.
func TestTheLockHoldsWithoutItsFile(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	l, err := Acquire(vfs.Default, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Remove(filepath.Join(dir, "LOCK")); err != nil {
		t.Fatal(err)
	}
	if _, err := lockDir(dir); err == nil {
		t.Error("the directory could be locked once more")
	}
	if _, err := Acquire(vfs.Default, dir+"/."); !errors.Is(err, ErrLocked) { // by another name, as this process remembers those that it locked
		t.Errorf("a second lock: %v", err)
	}
}

// Where only the file is locked, it is noticed that the file was deleted.
func TestADeletedLockFileIsNoticed(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "LOCK")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l := &Lock{}
	l.watchFile(dir)
	if err := l.Check(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := l.Check(); !errors.Is(err, ErrLockRemoved) {
		t.Error(err)
	}
}
