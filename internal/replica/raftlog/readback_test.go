package raftlog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// small opens a log of which next to nothing stays in memory.
func small(t *testing.T, fsys vfs.FS, applied Position) *Log {
	t.Helper()
	l, err := Open(Options{FS: fsys, Dir: "raft", SegmentBytes: 2 << 10, MemoryBytes: 1, Applied: applied})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A log whose entries are in files reads as one that has them in memory, whatever was replaced
// and dropped before, also after a restart.
func TestEntriesAreReadBackFromFiles(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 1))
			fsys := create(t)
			l := small(t, fsys, founded)
			model := []*raftpb.Entry{entry(1, 1)} // by index-1
			committed, base, term := uint64(1), uint64(1), uint64(2)
			for range 150 {
				last := uint64(len(model))
				switch n := rng.IntN(20); {
				case n < 10: // append, or replace what is not committed
					first := last + 1
					if committed < last && rng.IntN(4) == 0 {
						term++
						first = committed + 1 + rng.Uint64N(last-committed)
					}
					model = model[:first-1]
					for range 1 + rng.IntN(4) {
						e := entry(uint64(len(model))+1, term)
						e.Data = append(e.Data, strings.Repeat("x", rng.IntN(100))...)
						model = append(model, e)
					}
					l.mustAppend(t, State{Term: term, Commit: committed}, model[first-1:]...)
				case n < 14:
					committed += rng.Uint64N(last - committed + 1)
					l.SetCommit(committed)
				case n < 15:
					if err := l.Compact(base + rng.Uint64N(committed-base+1)); err != nil {
						t.Fatal(err)
					}
				case n < 16:
					if err := l.Close(); err != nil {
						t.Fatal(err)
					}
					l = small(t, fsys, Position{Index: committed, Term: model[committed-1].GetTerm()})
				}
				if base = l.Base().Index; l.kept > committed+1 {
					t.Fatalf("entries are in memory from %d on, and those up to %d are committed", l.kept, committed)
				}
				mustRead(t, rng, l, model, base)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// mustRead compares some entries with those of the model.
func mustRead(t *testing.T, rng *rand.Rand, l *Log, model []*raftpb.Entry, base uint64) {
	t.Helper()
	last := uint64(len(model))
	if got, _ := l.LastIndex(); got != last {
		t.Fatalf("the last entry is %d, want %d", got, last)
	}
	for index := base + 1; index <= last; index++ {
		if got, err := l.Term(index); err != nil || got != model[index-1].GetTerm() {
			t.Fatalf("entry %d has term %d (%v), want %d", index, got, err, model[index-1].GetTerm())
		}
	}
	if base == last {
		return
	}
	next := base + 1 + rng.Uint64N(last-base)
	for range 1 + rng.IntN(3) { // reading on
		if next > last {
			return
		}
		hi, most := next+1+rng.Uint64N(last-next+1), rng.Uint64N(500)
		got, err := l.Entries(next, hi, most)
		if err != nil || len(got) == 0 || uint64(len(got)) > hi-next {
			t.Fatalf("entries %d to %d: %d, %v", next, hi, len(got), err)
		}
		var size uint64
		for i, e := range got {
			want := model[next-1+uint64(i)]
			if e.GetIndex() != want.GetIndex() || e.GetTerm() != want.GetTerm() || string(e.GetData()) != string(want.GetData()) {
				t.Fatalf("entry %d is %v, want %v", next+uint64(i), e, want)
			}
			if size += uint64(len(e.GetData())) + entryHeader; i > 0 && size > most {
				t.Fatalf("%d bytes, want %d at the most", size, most)
			}
		}
		next += uint64(len(got))
	}
}

// What is committed does not stay in memory beyond the bound; what is not, does.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	fsys := create(t)
	const bound = 4 << 10
	l, err := Open(Options{FS: fsys, Dir: "raft", SegmentBytes: 64 << 10, MemoryBytes: bound, Applied: founded})
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(2); i <= 1000; i++ {
		l.mustAppend(t, State{Term: 2, Commit: i - 1}, entry(i, 2))
	}
	if got := l.MemoryBytes(); got > bound+2*sizeOf(entry(1000, 2)) {
		t.Errorf("%d bytes of committed entries are in memory, want %d at the most", got, bound)
	}
	if got := l.Bytes(); got < 999*recordBytes {
		t.Errorf("999 entries take %d bytes in the files", got)
	}
	for i := uint64(1001); i <= 1100; i++ {
		l.mustAppend(t, State{Term: 2, Commit: 1000}, entry(i, 2))
	}
	if got := l.MemoryBytes(); got < 100*entryBytes {
		t.Errorf("%d bytes of 100 entries that are not committed are in memory", got)
	}
	l.SetCommit(1100)
	if got := l.MemoryBytes(); got > bound {
		t.Errorf("%d bytes are in memory when all is committed, want %d at the most", got, bound)
	}
}

// A cursor that stands before files that Compact has removed finds what the log still has.
func TestReadingGoesOnAfterCompact(t *testing.T) {
	t.Parallel()
	fsys := create(t)
	l := small(t, fsys, founded)
	for i := uint64(2); i <= 400; i++ {
		l.mustAppend(t, State{Term: 2, Commit: i - 1}, entry(i, 2))
	}
	if _, err := l.Entries(2, 300, 1<<20); err != nil { // leaves a cursor at 300
		t.Fatal(err)
	}
	if err := l.Compact(350); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Entries(l.Base().Index, 400, 1<<20); !errors.Is(err, raft.ErrCompacted) {
		t.Errorf("an entry that was dropped: %v", err)
	}
	next := l.Base().Index + 1
	if next < 300 || next > 351 {
		t.Fatalf("the log begins with entry %d", next)
	}
	if got, err := l.Entries(next, 400, 1<<20); err != nil || got[0].GetIndex() != next {
		t.Errorf("the first entry that is left: %v, %v", got, err)
	}
}
