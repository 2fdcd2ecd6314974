package datadir

import (
	"bytes"
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// What is written to a manifest waits for room, and is there once; a table, a sync and an error
// of another kind don't wait.
func TestManifestWaitsForRoom(t *testing.T) {
	t.Parallel()
	const name = "MANIFEST-000001"
	for _, c := range []struct {
		what, name string
		kind       errorfs.OpKind
		err        error
		times      int // that it fails
		made       int // how often room is asked for
		want       error
	}{
		{"a write", name, errorfs.OpFileWrite, syscall.ENOSPC, 2, 2, nil},
		{"a write that the first attempt helps", name, errorfs.OpFileWrite, syscall.ENOSPC, 1, 1, nil},
		{"a file", name, errorfs.OpCreate, syscall.ENOSPC, 2, 2, nil},
		{"a table", "000001.sst", errorfs.OpFileWrite, syscall.ENOSPC, 1, 0, syscall.ENOSPC},
		{"a sync", name, errorfs.OpFileSync, syscall.ENOSPC, 1, 0, syscall.ENOSPC},
		{"a broken disk", name, errorfs.OpFileWrite, syscall.EIO, 1, 0, syscall.EIO},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			mem, failed, made, said := vfs.NewMem(), 0, 0, 0
			fs := NewManifestFS(errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind != c.kind || failed == c.times {
					return nil
				}
				failed++
				return c.err
			})), func() { made++ }, func(time.Duration) { said++ })
			f, err := fs.Create(c.name, vfs.WriteCategoryUnspecified)
			if err == nil {
				_, err = f.Write([]byte("record"))
			}
			if err == nil {
				err = f.Sync()
			}
			if !errors.Is(err, c.want) || made != c.made {
				t.Fatalf("%v, and room was asked for %d times; want %v and %d", err, made, c.want, c.made)
			}
			if want := c.made / 2; said != want { // the first time the ballast may be enough
				t.Errorf("it was said %d times that it waits, want %d", said, want)
			}
			if c.want != nil {
				return
			}
			f, err = mem.Open(c.name)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(f); err != nil || string(got) != "record" {
				t.Errorf("it has %q, %v", got, err)
			}
		})
	}
}

// shortWrites takes three bytes, and then has room for no more until it is asked for.
type shortWrites struct {
	vfs.File
	got  bytes.Buffer
	room bool
}

func (f *shortWrites) Write(p []byte) (int, error) {
	if f.room {
		return f.got.Write(p)
	}
	n, _ := f.got.Write(p[:3])
	return n, syscall.ENOSPC
}

// What was written of a record is not written again.
func TestManifestGoesOnWithinARecord(t *testing.T) {
	t.Parallel()
	under := new(shortWrites)
	f := &manifest{File: under, fs: NewManifestFS(vfs.NewMem(), func() { under.room = true }, nil)}
	if n, err := f.Write([]byte("record")); n != 6 || err != nil || under.got.String() != "record" {
		t.Errorf("%d, %v, and the file has %q", n, err, under.got.String())
	}
}

// It doesn't wait for ever.
func TestManifestWithoutRoom(t *testing.T) {
	t.Parallel()
	fs := NewManifestFS(errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite {
			return syscall.ENOSPC
		}
		return nil
	})), func() {}, func(time.Duration) {})
	fs.patience = 2 * manifestPause
	f, err := fs.Create("MANIFEST-000001", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := f.Write([]byte("record")); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%d, %v", n, err)
	}
}
