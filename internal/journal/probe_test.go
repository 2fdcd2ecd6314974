package journal

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// fillProbed puts n rows into the journal, of the size of a remembered message
// that is done, and moves them to the lowest level.
func fillProbed(t testing.TB, j *Journal, n int) {
	value := make([]byte, 40)
	for i := range n {
		a := j.Begin()
		a.Set(probedKey(i), value)
		a.End(nil)
		if i%1000 == 0 {
			j.Admit()
		}
	}
	done := make(chan struct{})
	j.Begin().End(waiterFunc(func() { close(done) }))
	<-done
	if err := j.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := j.db.Compact(t.Context(), []byte("r|"), []byte("r}"), false); err != nil {
		t.Fatal(err)
	}
}

// probedKey spreads the numbers, so that what is asked for lies between what is
// there and not behind it.
func probedKey(i int) []byte {
	return binary.BigEndian.AppendUint64([]byte("r|"), uint64(i)*0x9E3779B97F4A7C15)
}

// A look-up of what is not there is answered by the filter: the only block that
// Pebble looks at is that of the filter itself. BenchmarkProbe says the same of a
// million rows.
func TestProbeOfNothingTouchesNoDataBlock(t *testing.T) {
	t.Parallel()
	j := mustOpen(t, Options{FS: vfs.NewMem()})
	const n, lookups = 50_000, 10_000
	fillProbed(t, j, n)
	if readMore := lookupsBeyondFilters(t, j, n, lookups); readMore > lookups*2/100 {
		t.Errorf("%d of %d look-ups read more than a filter", readMore, lookups)
	}
	for i := range 100 {
		value, found, err := j.Probe(nil, probedKey(i))
		if err != nil || !found || len(value) != 40 {
			t.Fatalf("row %d: found %v, %d bytes, %v", i, found, len(value), err)
		}
	}
	mustClose(t, j)
}

// lookupsBeyondFilters looks up rows that are not there, and counts the look-ups
// that read more than the filter of one table.
func lookupsBeyondFilters(t testing.TB, j *Journal, n, lookups int) (readMore int) {
	t.Helper()
	filters := filterSizes(t, j)
	for i := n; i < n+lookups; i++ {
		it, err := j.db.NewIter(&pebble.IterOptions{UseL6Filters: true})
		if err != nil {
			t.Fatal(err)
		}
		if seekExact(it, probedKey(i)) {
			t.Fatalf("row %d is there", i)
		}
		if !slices.ContainsFunc(filters, onlyFilter(it.Stats().InternalStats.BlockBytes)) {
			readMore++
		}
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return readMore
}

// onlyFilter says whether what a look-up has read is a filter of this size, and
// besides it no more than the root of the table's index: a data block has about
// 1,150 bytes here, the root 150.
func onlyFilter(read uint64) func(filter uint64) bool {
	return func(filter uint64) bool { return read >= filter && read < filter+500 }
}

// filterSizes are the lengths of the filters of all tables, which must be in the
// lowest level.
func filterSizes(t testing.TB, j *Journal) (sizes []uint64) {
	t.Helper()
	levels, err := j.db.SSTables(pebble.WithProperties())
	if err != nil {
		t.Fatal(err)
	}
	for level, tables := range levels {
		if level < 6 && len(tables) > 0 {
			t.Fatalf("%d tables in level %d", len(tables), level)
		}
		for _, table := range tables {
			sizes = append(sizes, table.Properties.FilterSize)
		}
	}
	if len(sizes) == 0 {
		t.Fatal("there are no tables")
	}
	return sizes
}

func TestProbeSeesWhatWasApplied(t *testing.T) {
	t.Parallel()
	j := mustOpen(t, Options{FS: vfs.NewMem()})
	a := j.Begin()
	a.Set([]byte("r|one"), []byte("1"))
	a.Set([]byte("r|oneandmore"), []byte("2"))
	a.End(nil)
	j.WaitDurable()
	before := j.Applied()
	if _, found, err := j.Probe(nil, []byte("r|one")); found || err != nil || j.Applied() != before {
		t.Errorf("before it is applied: %v, %v, and %d was applied", found, err, j.Applied())
	}
	if err := j.applyDurable(); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"r|one": "1", "r|oneandmore": "2", "r|on": "", "r|onea": "", "r|z": ""} {
		value, found, err := j.Probe([]byte("> "), []byte(key))
		if err != nil || found != (want != "") || string(value) != "> "+want {
			t.Errorf("%s: %q, %v, %v", key, value, found, err)
		}
	}
	a = j.Begin()
	a.Delete([]byte("r|one"))
	a.End(nil)
	j.WaitDurable()
	if err := j.applyDurable(); err != nil {
		t.Fatal(err)
	}
	if _, found, err := j.Probe(nil, []byte("r|one")); found || err != nil {
		t.Errorf("after its deletion: %v, %v", found, err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := j.Probe(nil, []byte("r|one")); err == nil {
		t.Error("a closed journal can be read")
	}
}

func BenchmarkProbe(b *testing.B) {
	const n = 1_000_000
	j := mustOpen(b, Options{FS: vfs.Default, Dir: b.TempDir()})
	defer mustClose(b, j)
	fillProbed(b, j, n)
	const lookups = 20_000
	beyond := float64(lookupsBeyondFilters(b, j, n, lookups)) / lookups
	for name, from := range map[string]int{"nothing": n, "something": 0} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var dst []byte
			for i := 0; b.Loop(); i++ {
				dst, _, _ = j.Probe(dst[:0], probedKey(from+i%n))
			}
			if name == "nothing" {
				b.ReportMetric(100*beyond, "%-beyond-filter")
			}
		})
	}
	b.Run("nothing, by Get", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			_, _, _ = j.Get(probedKey(n + i))
		}
	})
}
