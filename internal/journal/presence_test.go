//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package journal

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// openIn opens a journal in a directory of the machine's, and gives what it fails with.
func openIn(t *testing.T, dir string) (j *Journal, failed chan error) {
	t.Helper()
	failed = make(chan error, 1)
	j = mustOpen(t, Options{Dir: dir, Fatal: func(err error) { failed <- err }})
	t.Cleanup(func() {
		if j.Close() != nil { // it has failed, and holds its lock
			_ = j.lock.Close()
		}
	})
	return j, failed
}

// Once the directory is deleted nothing is acknowledged any more.
func TestNothingIsAcknowledgedInADeletedDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	j, failed := openIn(t, dir)
	putAndWait(j, "k1", "v")
	if err := removeAll(dir); err != nil {
		t.Fatal(err)
	}
	acked := make(chan struct{})
	put(j, "k2", "v", waiterFunc(func() { close(acked) }))
	select {
	case <-acked:
		t.Error("a write was acknowledged that is nowhere")
	case err := <-failed:
		if !errors.Is(err, errRemoved) && !errors.Is(err, errMoved) {
			t.Error(err)
		}
	}
}

// removeAll removes a directory in which the journal may be making its ballast.
func removeAll(dir string) (err error) {
	for range 1000 {
		if err = os.RemoveAll(dir); err == nil {
			break
		}
	}
	return err
}

// A journal that is idle, or whose directory was moved or replaced, notices by itself.
func TestADirectoryThatIsGoneIsNoticed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(dir string) error{
		"deleted": removeAll,
		"moved":   func(dir string) error { return os.Rename(dir, dir+"2") },
		"replaced": func(dir string) error {
			old := dir + "2"
			err := os.Rename(dir, old)
			if err == nil {
				err = os.CopyFS(dir, os.DirFS(old))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			_, failed := openIn(t, dir)
			if err := change(dir); err != nil {
				t.Fatal(err)
			}
			if err := <-failed; !errors.Is(err, errMoved) {
				t.Error(err)
			}
		})
	}
}

// The directory stays locked when its file LOCK is deleted.
func TestTheLockHoldsWithoutItsFile(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	j, _ := openIn(t, dir)
	if err := os.Remove(filepath.Join(dir, "LOCK")); err != nil {
		t.Fatal(err)
	}
	if _, err := lockDir(dir); err == nil {
		t.Error("the directory could be locked once more")
	}
	if _, err := lock(j.o.FS, dir+"/."); !errors.Is(err, ErrLocked) { // by another name, as this process remembers those that it locked
		t.Errorf("a second journal: %v", err)
	}
	putAndWait(j, "k", "v")
}

// Where only the file is locked, a journal whose file was deleted ends.
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
	l := &dirLock{}
	l.watchFile(dir)
	if err := l.check(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := l.check(); !errors.Is(err, errLock) {
		t.Error(err)
	}
}
