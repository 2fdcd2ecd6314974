package raftlog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

var founded = Position{Index: 1, Term: 1}

// entry makes an entry whose data tell its index and term.
func entry(index, term uint64) *raftpb.Entry {
	return newEntry(index, term, raftpb.EntryNormal, fmt.Appendf(nil, "%d of term %d", index, term))
}

func entriesOf(term uint64, indexes ...uint64) (entries []*raftpb.Entry) {
	for _, index := range indexes {
		entries = append(entries, entry(index, term))
	}
	return entries
}

// create makes a log that begins behind entry 1 of term 1.
func create(t *testing.T) vfs.FS {
	t.Helper()
	fsys := vfs.NewMem()
	if err := Create(fsys, "raft", founded); err != nil {
		t.Fatal(err)
	}
	return fsys
}

func open(t *testing.T, fsys vfs.FS, applied Position) *Log {
	t.Helper()
	l, err := Open(Options{FS: fsys, Dir: "raft", SegmentBytes: 1 << 10, Applied: applied})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *Log) mustAppend(t *testing.T, s State, entries ...*raftpb.Entry) {
	t.Helper()
	if err := errors.Join(l.Append(s, entries), l.Sync()); err != nil {
		t.Fatal(err)
	}
}

// content lists a log's beginning, its entries and its state.
func (l *Log) content(t *testing.T) string {
	t.Helper()
	first, _ := l.FirstIndex()
	last, _ := l.LastIndex()
	s := l.State()
	text := fmt.Sprintf("behind %d of %d:", l.Base().Index, l.Base().Term)
	if first <= last {
		entries, err := l.Entries(first, last+1, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			text += fmt.Sprintf(" %s,", e.GetData())
		}
	}
	return text + fmt.Sprintf(" term %d, vote %d, commit %d", s.Term, s.Vote, s.Commit)
}

func (l *Log) mustBe(t *testing.T, want string) {
	t.Helper()
	if got := l.content(t); got != want {
		t.Errorf("the log is\n%s\nwant\n%s", got, want)
	}
}

func TestVoteAndEntriesAreThereAfterARestart(t *testing.T) {
	t.Parallel()
	fsys := create(t)
	l := open(t, fsys, founded)
	l.mustAppend(t, State{Term: 2, Vote: 7, Commit: 1})
	l.mustAppend(t, State{Term: 2, Vote: 7, Commit: 1}, entriesOf(2, 2, 3)...)
	l.SetCommit(2) // alone it is not written
	l.mustAppend(t, State{Term: 3, Vote: 8, Commit: 2})

	open(t, fsys, founded).mustBe(t, "behind 1 of 1: 2 of term 2, 3 of term 2, term 3, vote 8, commit 2")
}

func TestReplacedEntriesStayReplaced(t *testing.T) {
	t.Parallel()
	fsys := create(t)
	l := open(t, fsys, founded)
	l.mustAppend(t, State{Term: 2, Commit: 2}, entriesOf(2, 2, 3, 4, 5)...)
	l.mustAppend(t, State{Term: 3, Commit: 2}, entriesOf(3, 4)...)
	const want = "behind 1 of 1: 2 of term 2, 3 of term 2, 4 of term 3, term 3, vote 0, commit 2"
	l.mustBe(t, want)
	l = open(t, fsys, founded)
	l.mustBe(t, want)
	// A leader of a later term may have an entry of an earlier one.
	l.mustAppend(t, State{Term: 4, Commit: 2}, entriesOf(2, 4, 5)...)
	open(t, fsys, founded).mustBe(t, "behind 1 of 1: 2 of term 2, 3 of term 2, 4 of term 2, 5 of term 2, term 4, vote 0, commit 2")
}

func TestCommittedEntryIsNotReplaced(t *testing.T) {
	t.Parallel()
	l := open(t, create(t), founded)
	l.mustAppend(t, State{Term: 2, Commit: 3}, entriesOf(2, 2, 3, 4)...)
	for _, first := range []uint64{1, 3, 6} {
		if err := l.Append(State{Term: 3, Commit: 3}, entriesOf(3, first)); err == nil {
			t.Errorf("entry %d was appended to entries up to 4 of which 3 is committed", first)
		}
	}
	l.mustAppend(t, State{Term: 3, Commit: 3}, entriesOf(3, 4)...)
}

func TestCompactDropsFilesAndNothingThatIsNeeded(t *testing.T) {
	t.Parallel()
	fsys := create(t)
	l := open(t, fsys, founded)
	for i := uint64(2); i <= 101; i++ {
		l.mustAppend(t, State{Term: 2, Vote: 3, Commit: i - 1}, entry(i, 2))
	}
	before, _ := firstRecords(fsys, "raft")
	if err := l.Compact(98); err != nil {
		t.Fatal(err)
	}
	after, _ := firstRecords(fsys, "raft")
	if len(before) < 5 || len(after) > 2 {
		t.Errorf("%d files before, %d after", len(before), len(after))
	}
	if got, want := l.Bytes(), int64(len("99 of term 2")+len("100 of term 2")*2+3*recordBytes); got != want {
		t.Errorf("the log has %d bytes of entries, want %d", got, want)
	}
	const want = "behind 98 of 2: 99 of term 2, 100 of term 2, 101 of term 2, term 2, vote 3, commit 100"
	l.mustBe(t, want)
	open(t, fsys, Position{Index: 98, Term: 2}).mustBe(t, want)
	open(t, fsys, Position{Index: 100, Term: 2}).mustBe(t, want)
	if _, err := l.Entries(98, 100, 1000); !errors.Is(err, raft.ErrCompacted) {
		t.Errorf("an entry that was dropped: %v", err)
	}
	if err := l.Compact(101); err == nil {
		t.Error("an entry was dropped that is not committed")
	}
}

func TestLogThatLacksEntriesIsRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what    string
		applied Position
		spoil   func(fsys vfs.FS, segments []uint64) error
	}{
		{"the tables are older than the log's beginning", Position{Index: 40, Term: 2}, nil},
		{"the tables have another entry", Position{Index: 55, Term: 3}, nil},
		{"the tables have an entry behind the end", Position{Index: 200, Term: 2}, nil},
		{"the first file is missing", Position{Index: 55, Term: 2}, func(fsys vfs.FS, s []uint64) error { return fsys.Remove("raft/" + wal.SegmentName(s[0])) }},
		{"a file is missing", Position{Index: 55, Term: 2}, func(fsys vfs.FS, s []uint64) error { return fsys.Remove("raft/" + wal.SegmentName(s[len(s)/2])) }},
		{"the last file is missing", Position{Index: 55, Term: 2}, func(fsys vfs.FS, s []uint64) error {
			return fsys.Remove("raft/" + wal.SegmentName(s[len(s)-1]))
		}},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			fsys := create(t)
			l := open(t, fsys, founded)
			for i := uint64(2); i <= 101; i++ {
				l.mustAppend(t, State{Term: 2, Commit: i - 1}, entry(i, 2))
			}
			if err := errors.Join(l.Compact(50), l.Close()); err != nil {
				t.Fatal(err)
			}
			if test.spoil != nil {
				segments, _ := firstRecords(fsys, "raft")
				if err := test.spoil(fsys, segments); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Open(Options{FS: fsys, Dir: "raft", Applied: test.applied}); !errors.Is(err, ErrDamaged) {
				t.Errorf("the log was opened: %v", err)
			}
		})
	}
}

func TestFilesThatComeBackAreNotRead(t *testing.T) {
	t.Parallel()
	fsys := create(t)
	old, err := fsys.Open("raft/" + wal.SegmentName(1))
	if err != nil {
		t.Fatal(err)
	}
	l := open(t, fsys, founded)
	for i := uint64(2); i <= 101; i++ {
		l.mustAppend(t, State{Term: 2, Commit: i - 1}, entry(i, 2))
	}
	if err := l.Compact(100); err != nil {
		t.Fatal(err)
	}
	want := l.content(t)

	back, err := fsys.Create("raft/"+wal.SegmentName(1), vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 1<<10)
	if _, err := old.Read(content); err != nil {
		t.Fatal(err)
	}
	if _, err := back.Write(content); err != nil {
		t.Fatal(err)
	}
	open(t, fsys, Position{Index: 100, Term: 2}).mustBe(t, want)
}

func TestSnapshotThatWasInterrupted(t *testing.T) {
	t.Parallel()
	at := Position{Index: 9, Term: 3}
	begun := func(t *testing.T) (vfs.FS, *Log) {
		fsys := create(t)
		l := open(t, fsys, founded)
		l.mustAppend(t, State{Term: 2, Commit: 2}, entriesOf(2, 2, 3)...)
		if err := l.BeginSnapshot(State{Term: 3, Commit: 9}, at); err != nil {
			t.Fatal(err)
		}
		return fsys, l
	}
	t.Run("before the state machine was replaced", func(t *testing.T) {
		t.Parallel()
		fsys, _ := begun(t)
		open(t, fsys, founded).mustBe(t, "behind 1 of 1: 2 of term 2, 3 of term 2, term 3, vote 0, commit 2")
	})
	t.Run("after it", func(t *testing.T) {
		t.Parallel()
		fsys, _ := begun(t)
		const want = "behind 9 of 3: term 3, vote 0, commit 9"
		open(t, fsys, at).mustBe(t, want)
		l := open(t, fsys, at)
		l.mustBe(t, want)
		l.mustAppend(t, State{Term: 3, Commit: 9}, entry(10, 3))
	})
	t.Run("not at all", func(t *testing.T) {
		t.Parallel()
		fsys, l := begun(t)
		if err := l.EndSnapshot(at, &raftpb.ConfState{Voters: []uint64{4}}); err != nil {
			t.Fatal(err)
		}
		if _, conf, _ := l.InitialState(); !slices.Equal(conf.GetVoters(), []uint64{4}) {
			t.Errorf("the membership is %v", conf)
		}
		l.mustAppend(t, State{Term: 3, Commit: 9}, entry(10, 3))
		const want = "behind 9 of 3: 10 of term 3, term 3, vote 0, commit 9"
		l.mustBe(t, want)
		open(t, fsys, at).mustBe(t, want)
	})
}

func TestLogIsCreatedOnce(t *testing.T) {
	t.Parallel()
	fsys := create(t)
	if err := Create(fsys, "raft", founded); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second log: %v", err)
	}
	if err := fsys.Remove("raft/" + formatFile); err != nil { // as if the first Create had been interrupted
		t.Fatal(err)
	}
	if _, err := Open(Options{FS: fsys, Dir: "raft", Applied: founded}); !errors.Is(err, ErrNone) {
		t.Errorf("half a log was opened: %v", err)
	}
	if err := Create(fsys, "raft", Position{}); err != nil {
		t.Fatal(err)
	}
	open(t, fsys, Position{}).mustBe(t, "behind 0 of 0: term 0, vote 0, commit 0")
}

func TestEntriesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	l := open(t, create(t), founded)
	l.mustAppend(t, State{Term: 2, Commit: 1}, entriesOf(2, 2, 3, 4)...)
	size := uint64(len("2 of term 2") + entryHeader)
	for _, test := range []struct{ bound, want uint64 }{{0, 1}, {size, 1}, {2*size - 1, 1}, {2 * size, 2}, {1000, 3}} {
		if got, err := l.Entries(2, 5, test.bound); err != nil || uint64(len(got)) != test.want {
			t.Errorf("of %d bytes: %d entries, want %d (%v)", test.bound, len(got), test.want, err)
		}
	}
	if _, err := l.Entries(4, 6, 1000); !errors.Is(err, raft.ErrUnavailable) {
		t.Errorf("an entry behind the end: %v", err)
	}
}

// A start says how far it has got with reading the log, which it reads twice.
func TestReadingIsShown(t *testing.T) {
	t.Parallel()
	fsys := create(t)
	l := open(t, fsys, founded)
	const entries, size = 24, readingStep / 4
	for i := range entries {
		l.mustAppend(t, State{Term: 1, Commit: 1}, newEntry(uint64(2+i), 1, raftpb.EntryNormal, make([]byte, size)))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var shown []int64
	l, err := Open(Options{FS: fsys, Dir: "raft", Applied: founded, Reading: func(bytes int64) { shown = append(shown, bytes) }})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if n := 2 * entries * size / readingStep; len(shown) != n || !slices.IsSorted(shown) || shown[0] < readingStep || shown[n-1] < int64(n)*readingStep {
		t.Errorf("shown are %v, want %d steps", shown, n)
	}
}

func FuzzReadRecord(f *testing.F) {
	f.Add(appendEntries(nil, State{Term: 2, Vote: 3, Commit: 4}, entriesOf(2, 5, 6)))
	f.Add(appendPosition(nil, State{Term: 2}, kindBase, founded, 9))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := readRecord(b)
		if err != nil || r.kind != kindEntries || len(r.entries) == 0 {
			return
		}
		if again := appendEntries(nil, r.State, r.entries); string(again) != string(b) {
			t.Errorf("%x was read and written as %x", b, again)
		}
	})
}
