package backup

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// calling is a Waiter that calls a function.
type calling struct{ f func() }

func (c *calling) Durable(journal.Seq) { c.f() }

func waiterFunc(f func()) journal.Waiter { return &calling{f} }

func mustOpen(t testing.TB, o journal.Options) *journal.Journal {
	t.Helper()
	if o.Dir == "" {
		o.Dir = "data"
	}
	o.Logger = slog.New(slog.DiscardHandler)
	o.Fatal = func(err error) { t.Errorf("commit failed: %v", err) }
	j, err := journal.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func sameRows(got, want map[string]string) bool {
	if len(got) != len(want) {
		return false
	}
	for k, v := range want {
		if got[k] != v {
			return false
		}
	}
	return true
}

func mustClose(t testing.TB, j *journal.Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func put(j *journal.Journal, key, value string, w journal.Waiter) {
	a := j.Begin()
	a.Set([]byte(key), []byte(value))
	a.End(w)
}

// putAndWait returns when the row is durable.
func putAndWait(j *journal.Journal, key, value string) {
	done := make(chan struct{})
	put(j, key, value, waiterFunc(func() { close(done) }))
	<-done
}

func rowsIn(t testing.TB, j *journal.Journal) map[string]string {
	t.Helper()
	rows := map[string]string{}
	if err := j.Iterate([]byte("k"), []byte("l"), func(k, v []byte) bool { rows[string(k)] = string(v); return true }); err != nil {
		t.Fatal(err)
	}
	return rows
}

// changesDisk says whether an operation changes what is on the disk, in the data directory.
func changesDisk(op errorfs.Op) bool {
	switch op.Kind {
	case errorfs.OpCreate, errorfs.OpLink, errorfs.OpRemove, errorfs.OpRename, errorfs.OpReuseForWrite, errorfs.OpFileWrite,
		errorfs.OpFileWriteAt, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo, errorfs.OpFileClose:
		return true
	}
	return false
}

// grown is a data directory that journaltest.Grow has filled, as a kill and as a stop leave
// it; and the rows.
func grown(t testing.TB) (killed, stopped journaltest.Tree, rows map[string]string) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	j := mustOpen(t, journal.Options{FS: fs})
	rows = journaltest.Grow(t, func(key, value string) { putAndWait(j, key, value) }, j.Flush)
	killed = journaltest.ReadTree(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	mustClose(t, j)
	stopped = journaltest.ReadTree(t, fs)
	return killed, stopped, rows
}

// severalSegments is a log of several segments, none of whose rows are in tables.
func severalSegments(t testing.TB) (files journaltest.Tree, rows int) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	j := mustOpen(t, journal.Options{FS: fs, SegmentBytes: 200})
	for ; len(segmentsOf(t, fs)) < wal.MaxSegments || rows%2 == 0; rows++ { // with one more tables would be written
		putAndWait(j, fmt.Sprintf("k%04d", rows), fmt.Sprint("value ", rows))
	}
	files = journaltest.ReadTree(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	mustClose(t, j)
	return files, rows
}

// segmentsOf are the names of a directory's segments, in their order.
func segmentsOf(t testing.TB, fs vfs.FS) []string {
	t.Helper()
	return journaltest.Names(t, fs, func(name string) bool { _, ok := wal.ParseSegmentName(name); return ok })
}
