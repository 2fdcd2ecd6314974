package raftlog

import (
	"errors"
	"io"
	"reflect"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// Each kind of record has a file with one. The program reads it as it was meant, and writes it as it
// always has.
func TestFormsOfRecords(t *testing.T) {
	t.Parallel()
	s, at := State{Term: 3, Vote: 0x1122334455667788, Commit: 70_000}, Position{Index: 69_990, Term: 2}
	entries := []*raftpb.Entry{
		newEntry(70_001, 3, raftpb.EntryNormal, []byte("rows")), newEntry(70_002, 3, raftpb.EntryNormal, nil), newEntry(70_003, 3, raftpb.EntryConfChange, []byte("change")),
	}
	marked := func(k kind, begins uint64) record { return record{State: s, kind: k, at: at, begins: begins} }
	kinds := map[kind]bool{}
	for _, c := range []struct {
		name    string
		written []byte
		want    record
	}{
		{"entries", appendEntries(nil, s, entries), record{State: s, kind: kindEntries, first: 70_001, entries: entries}},
		{"state", appendEntries(nil, s, nil), record{State: s, kind: kindEntries}},
		{"base", appendPosition(nil, s, kindBase, at, 12), marked(kindBase, 12)},
		{"snapshot", appendPosition(nil, s, kindSnapshot, at, 0), marked(kindSnapshot, 0)},
		{"installed", appendPosition(nil, s, kindInstalled, at, 0), marked(kindInstalled, 0)},
	} {
		kinds[c.want.kind] = true
		got, err := readRecord(goldenfile.Check(t, c.name, c.written))
		got.entries, c.want.entries = withoutEmpty(got.entries), withoutEmpty(c.want.entries)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			goldenfile.Differs(t, c.name, []any{got, err}, c.want)
		}
	}
	for k := kindEntries; k <= kindInstalled; k++ {
		if !kinds[k] {
			t.Errorf("records of the kind %d have no file: add one to this test", k)
		}
	}
}

// withoutEmpty has nil for data without a byte.
func withoutEmpty(entries []*raftpb.Entry) (all []*raftpb.Entry) {
	for _, e := range entries {
		var data []byte
		if len(e.GetData()) > 0 {
			data = e.GetData()
		}
		all = append(all, newEntry(e.GetIndex(), e.GetTerm(), e.GetType(), data))
	}
	return all
}

// The file that says that there is a log is as the program has always written it.
func TestFormOfTheFileOfALog(t *testing.T) {
	t.Parallel()
	const mask = wal.Mask(0x5be0cd19137e2179)
	fsys := vfs.NewMem()
	if err := errors.Join(fsys.MkdirAll("written", 0o700), fsys.MkdirAll("golden", 0o700), writeFormat(fsys, "written", mask)); err != nil {
		t.Fatal(err)
	}
	f, err := fsys.Open("written/" + formatFile)
	if err != nil {
		t.Fatal(err)
	}
	written, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	g, err := fsys.Create("golden/"+formatFile, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = g.Write(goldenfile.Check(t, "file of a log", written))
		err = errors.Join(err, g.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readFormat(fsys, "golden"); err != nil || got != mask {
		goldenfile.Differs(t, "file of a log", []any{got, err}, mask)
	}
}
