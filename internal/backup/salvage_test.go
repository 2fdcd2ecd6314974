package backup

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// salvageTree copies what can be read in a tree, and gives the rows and what is said.
func salvageTree(t testing.TB, files journaltest.Tree) (rows map[string]string, found Salvaged) {
	t.Helper()
	fs := files.Plant(t)
	quiet := slog.New(slog.DiscardHandler)
	before := journaltest.ReadTree(t, fs)
	found, err := Salvage(journal.Options{Dir: "data", FS: fs, Logger: quiet}, "new", nil, func(*journal.Journal) error { return nil }, func(dir string) error {
		return checkSound(t, fs, dir)
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range before {
		if now, err := journaltest.ReadFile(fs, "data/"+name); err != nil || !bytes.Equal(now, content) {
			t.Errorf("the salvage has changed %s, %v", name, err)
		}
	}
	if err := checkSound(t, fs, "new"); err != nil {
		t.Fatal(err)
	}
	j := mustOpen(t, journal.Options{Dir: "new", FS: fs})
	defer mustClose(t, j)
	return rowsIn(t, j), found
}

// Of what is whole everything is salvaged, tables, log, deletions and all.
func TestSalvageOfWhatIsWhole(t *testing.T) {
	t.Parallel()
	killed, stopped, rows := grown(t)
	for name, files := range map[string]journaltest.Tree{"killed": killed, "stopped": stopped} {
		if got, found := salvageTree(t, files); !sameRows(got, rows) || len(found.Lost) > 0 || found.Older > 0 {
			t.Errorf("%s: %d rows of %d, lost %v", name, len(got), len(rows), found)
		}
	}
}

// manyBlocks is a directory with tables of many blocks, whose keys were written twice and
// some deleted since, one by one and as a range.
func manyBlocks(t testing.TB) (files journaltest.Tree, rows map[string]string) {
	t.Helper()
	fs := vfs.NewMem()
	j := mustOpen(t, journal.Options{FS: fs, SegmentBytes: 20_000}) // so that the log doesn't have all of it, too
	rows = map[string]string{}
	for round := range 2 {
		for n := range 2000 {
			if n%2 == 1 && round == 1 {
				continue
			}
			key, value := fmt.Sprintf("k|%06d", n), fmt.Sprintf("%d %0200d", round, n)
			put(j, key, value, nil)
			rows[key] = value
		}
		if err := j.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	a := j.Begin()
	a.Delete([]byte("k|000100"))
	a.DeleteRange([]byte("k|001000"), []byte("k|001100"))
	a.End(nil)
	putAndWait(j, "k|000003", strings.Repeat("3", 20_000)) // a segment of its own
	rows["k|000003"] = strings.Repeat("3", 20_000)
	putAndWait(j, "k|000005", "in the next segment")
	rows["k|000005"] = "in the next segment"
	if err := errors.Join(j.Flush(), j.TrimLog()); err != nil {
		t.Fatal(err)
	}
	delete(rows, "k|000100")
	for n := 1000; n < 1100; n++ {
		delete(rows, fmt.Sprintf("k|%06d", n))
	}
	putAndWait(j, "k|000001", "in the log")
	rows["k|000001"] = "in the log"
	mustClose(t, j) // after which the files of obsolete tables and segments are gone
	return journaltest.ReadTree(t, fs), rows
}

// With some bad bytes in a table, nearly everything is salvaged; nothing that was deleted
// comes back, no value that was overwritten, and it is said what is lost.
func TestSalvagePastBadBlocks(t *testing.T) {
	t.Parallel()
	files, rows := manyBlocks(t)
	if got, found := salvageTree(t, files); !sameRows(got, rows) || len(found.Lost) > 0 {
		t.Fatalf("whole: %d rows of %d, %v", len(got), len(rows), found)
	}
	for name, content := range files {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		for seed := range uint64(journaltest.Some(4)) {
			rng := rand.New(rand.NewPCG(seed, 3))
			bad := bytes.Clone(content)
			for range 1 + seed%3 {
				bad[rng.IntN(len(bad))] ^= 0x55
			}
			got, found := salvageTree(t, files.But(name, bad))
			for key, value := range got {
				if rows[key] != value {
					t.Fatalf("%s/%d: row %s is %.20q, want %.20q", name, seed, key, value, rows[key])
				}
			}
			if len(got) < len(rows) && len(found.Lost) == 0 {
				t.Errorf("%s/%d: %d rows of %d, and nothing is said to be lost", name, seed, len(got), len(rows))
			}
		}
	}
}

// One bad block of data costs the rows in it.
func TestSalvageLosesABlock(t *testing.T) {
	t.Parallel()
	files, rows := manyBlocks(t)
	largest := ""
	for name := range files {
		if strings.HasSuffix(name, ".sst") && len(files[name]) > len(files[largest]) {
			largest = name
		}
	}
	bad := bytes.Clone(files[largest])
	bad[len(bad)/4] ^= 1
	got, found := salvageTree(t, files.But(largest, bad))
	if lost := len(rows) - len(got); lost < 1 || lost > len(rows)/10 || len(found.Lost) != 1 {
		t.Errorf("%d rows of %d are lost: %v", lost, len(rows), found)
	}
}

// Without a manifest, or with a bad one, the tables are all read.
func TestSalvageWithoutAManifest(t *testing.T) {
	t.Parallel()
	files, rows := manyBlocks(t)
	for name, content := range files {
		if strings.HasPrefix(name, "MANIFEST") {
			bad := bytes.Clone(content)
			clear(bad[20:60])
			got, found := salvageTree(t, files.But(name, bad))
			if len(found.Lost) == 0 {
				t.Error("nothing is said")
			}
			for key, value := range rows {
				if got[key] != value {
					t.Errorf("row %s is %.20q, want %.20q", key, got[key], value)
				}
			}
		}
	}
}

// Past a bad batch in the log those that follow are salvaged.
func TestSalvagePastBadFrames(t *testing.T) {
	t.Parallel()
	files, rows := severalSegments(t)
	for _, name := range segmentsOf(t, files.Plant(t)) {
		content := bytes.Clone(files[name])
		ends := 0
		for p := 0; ; ends++ {
			length := int(content[p+8])
			if length == 0 {
				break
			}
			p += wal.FrameHeader + length
		}
		clear(content[30:36]) // in the first batch
		got, found := salvageTree(t, files.But(name, content))
		if len(got) < rows-1 || ends > 1 && len(found.Lost) == 0 {
			t.Errorf("%s with %d batches: %d rows of %d, %v", name, ends, len(got), rows, found)
		}
		delete(files, "")
		without := files.But("", nil)
		delete(without, "")
		delete(without, name)
		got, found = salvageTree(t, without)
		if len(got) < rows-ends || len(found.Lost) == 0 {
			t.Errorf("without %s: %d rows of %d, %v", name, len(got), rows, found)
		}
	}
}

// A manifest that ends early names the tables of an earlier moment. Wherever it ends, the
// salvage has all rows: from the newer tables, which it then reads as well.
func TestSalvageWithAManifestThatEndsEarly(t *testing.T) {
	t.Parallel()
	files, rows := manyBlocks(t)
	manifest := ""
	for name := range files {
		if strings.HasPrefix(name, "MANIFEST") && name > manifest {
			manifest = name
		}
	}
	content := files[manifest]
	between := 0
	for end := 1; end < len(content); end++ {
		cut := files.But(manifest, content[:end])
		whole, err := pebblefile.ReadsToEnd(cut.Plant(t), "data/"+manifest)
		switch {
		case err != nil:
			t.Fatal(err)
		case whole: // it ends between two records
			between++
		case end%(20*journaltest.Stride()) > 0:
			continue
		}
		got, found := salvageTree(t, cut)
		for key, value := range rows {
			if got[key] != value {
				t.Fatalf("cut at byte %d of %d: row %s is %.20q, want %.20q; lost: %v", end, len(content), key, got[key], value, found.Lost)
			}
		}
	}
	if between == 0 {
		t.Error("no cut was between two records")
	}
}
