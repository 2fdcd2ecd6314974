package datadir

import (
	"io/fs"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
)

// Descriptors that are kept are given up one by one when there are no others, those for the
// log not to tables; they are taken back when there are enough again, and closed at the end.
func TestDescriptorsAreKept(t *testing.T) {
	t.Parallel()
	var logged strings.Builder
	counted := journaltest.NewCountedFS(vfs.NewMem(), 100)
	if err := counted.MkdirAll("data", 0o700); err != nil {
		t.Fatal(err)
	}
	fsys := NewReservingFS(counted, "data", slog.New(slog.NewTextHandler(&logged, nil)))
	fsys.Fill()
	if n := counted.OpenFiles(); n != keptDescriptors {
		t.Fatalf("%d files are open, want %d", n, keptDescriptors)
	}
	counted.Exhaust()
	tables, segments := 0, 0
	for fails := false; !fails; {
		if _, err := fsys.Create("data/1.sst", vfs.WriteCategoryUnspecified); err != nil {
			fails = true
		} else {
			tables++
		}
	}
	var last vfs.File
	for fails := false; !fails; {
		if f, err := fsys.OpenReadWrite("data/1.journal", vfs.WriteCategoryUnspecified); err != nil {
			fails = true
		} else {
			last = f
			segments++
		}
	}
	if tables != keptDescriptors-keptForTheLog || segments != keptForTheLog {
		t.Errorf("%d tables and %d segments could be opened, want %d and %d", tables, segments, keptDescriptors-keptForTheLog, keptForTheLog)
	}
	if n := strings.Count(logged.String(), "no file descriptor is left"); n != 1 {
		t.Errorf("it logged %d times that there are no descriptors:\n%s", n, logged.String())
	}
	if err := last.Close(); err != nil || counted.OpenFiles() != keptDescriptors {
		t.Errorf("a segment was closed and its descriptor not kept: %d files are open, %v", counted.OpenFiles(), err)
	}
	counted.SetLimit(100)
	fsys.Fill()
	if n := counted.OpenFiles(); n != 2*keptDescriptors-1 {
		t.Errorf("%d files are open when there are enough descriptors again, want %d", n, 2*keptDescriptors-1)
	}
	fsys.Release()
	if n := counted.OpenFiles(); n != keptDescriptors-1 {
		t.Errorf("%d files are open after the end, want %d", n, keptDescriptors-1)
	}
}

func TestErrorsThatLackADescriptor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		system string
		err    error
		want   bool
	}{
		{"linux", syscall.EMFILE, true},
		{"linux", syscall.ENFILE, true},
		{"windows", syscall.Errno(4), true}, // ERROR_TOO_MANY_OPEN_FILES
		{"linux", syscall.Errno(4), false},  // EINTR
		{"linux", fs.ErrNotExist, false},
		{"windows", nil, false},
	} {
		if got := lacksDescriptor(c.system, c.err); got != c.want {
			t.Errorf("%s, %v: %v", c.system, c.err, got)
		}
	}
}
