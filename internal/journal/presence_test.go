//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package journal

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/wal"
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
		if !errors.Is(err, wal.ErrRemoved) && !errors.Is(err, errMoved) {
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
