package merging

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// rowsOf is a batch as the journal gives it, of keys and values; a nil value deletes.
func rowsOf(t testing.TB, db *pebble.DB, keys, values [][]byte) []byte {
	b := db.NewBatch()
	defer b.Close()
	for i, key := range keys {
		var err error
		if values[i] == nil {
			err = b.Delete(key, nil)
		} else {
			err = b.Set(key, values[i], nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return bytes.Clone(b.Repr()[batchrepr.HeaderLen:])
}

// open opens a database in memory, which nothing is written to.
func open(t testing.TB) *pebble.DB {
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), Logger: silent{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// A batch has the last change of each key, in the order of keys, whatever keys have in common.
func TestLastOfEachKeyInOrder(t *testing.T) {
	t.Parallel()
	db := open(t)
	var m Merging
	rapid.Check(t, func(rt *rapid.T) {
		part := rapid.SampledFrom([]string{"", "a", "b", "\x00", "\x00\x00\x00\x00\x00\x00\x00\x00", "\xff", "common prefix", "12345678"})
		key := rapid.Custom(func(rt *rapid.T) string {
			return part.Draw(rt, "1") + part.Draw(rt, "2") + part.Draw(rt, "3")
		})
		var keys, values [][]byte
		last := make(map[string]string)
		for i, k := range rapid.SliceOfN(key, 0, 200).Draw(rt, "keys") {
			value := fmt.Append(nil, i)
			if rapid.IntRange(0, 3).Draw(rt, "deleted") == 0 {
				value = nil
			}
			keys, values = append(keys, []byte(k)), append(values, value)
			last[k] = fmt.Sprint(value == nil, string(value))
		}
		into := db.NewBatch()
		defer into.Close()
		if err := m.Merge(into, rowsOf(t, db, keys, values)); err != nil {
			rt.Fatal(err)
		}
		var got []string
		for r := into.Reader(); ; {
			kind, k, value, more, err := r.Next()
			if err != nil {
				rt.Fatal(err)
			}
			if !more {
				break
			}
			got = append(got, string(k))
			if what := fmt.Sprint(kind == pebble.InternalKeyKindDelete, string(value)); what != last[string(k)] {
				rt.Errorf("%q: %s, want %s", k, what, last[string(k)])
			}
		}
		if !slices.IsSorted(got) || len(got) != len(last) {
			rt.Errorf("%d keys, want %d in order: %q", len(got), len(last), got)
		}
	})
}

// What is new and deleted again leaves nothing, not even its deletion, and with that the database has
// the same rows as if each change had been made by itself: also where a key was there before, and its
// deletion, or that of a range, comes first.
func TestNewRowsThatAreDeletedLeaveNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		db := open(t)
		m := Merging{New: func(_, value []byte) bool { return value[0] == 'n' }}
		want := make(map[string]string)
		for range rapid.IntRange(1, 5).Draw(rt, "merges") {
			batch, into := db.NewBatch(), db.NewBatch()
			for i := range rapid.IntRange(0, 60).Draw(rt, "changes") {
				key := fmt.Sprintf("%02d", rapid.IntRange(0, 20).Draw(rt, "key"))
				_, there := want[key]
				switch rapid.IntRange(0, 9).Draw(rt, "change") {
				case 0:
					to := key + "9"
					for k := range want {
						if k >= key && k < to {
							delete(want, k)
						}
					}
					_ = batch.DeleteRange([]byte(key), []byte(to), nil)
				case 1, 2, 3, 4:
					delete(want, key)
					_ = batch.Delete([]byte(key), nil)
				default:
					want[key] = fmt.Sprint("n", i)
					if there { // it takes the place of another
						want[key] = fmt.Sprint("again", i)
					}
					_ = batch.Set([]byte(key), []byte(want[key]), nil)
				}
			}
			if err := m.Merge(into, bytes.Clone(batch.Repr()[batchrepr.HeaderLen:])); err != nil {
				rt.Fatal(err)
			}
			if err := into.Commit(pebble.NoSync); err != nil {
				rt.Fatal(err)
			}
			if got := rowsIn(rt, db); !maps.Equal(got, want) {
				rt.Fatalf("%v, want %v", got, want)
			}
			_ = batch.Close()
		}
	})

	db := open(t)
	m := Merging{New: func(_, value []byte) bool { return string(value) == "new" }}
	for _, c := range []struct {
		values []string // of one key; empty: deleted
		rows   uint32   // in the batch
	}{
		{[]string{"new", ""}, 0},
		{[]string{"new", "changed", ""}, 0},
		{[]string{"new", "", "new", ""}, 0},
		{[]string{"new", "", "new"}, 1},
		{[]string{"", "new", ""}, 1},
		{[]string{"changed", ""}, 1},
		{[]string{""}, 1},
	} {
		var keys, values [][]byte
		for _, v := range c.values {
			keys, values = append(keys, []byte("key")), append(values, []byte(v))
			if v == "" {
				values[len(values)-1] = nil
			}
		}
		into := db.NewBatch()
		if err := m.Merge(into, rowsOf(t, db, keys, values)); err != nil {
			t.Fatal(err)
		}
		if into.Count() != c.rows {
			t.Errorf("%q: %d rows, want %d", c.values, into.Count(), c.rows)
		}
		_ = into.Close()
	}
}

// rowsIn are the rows of a database.
func rowsIn(rt *rapid.T, db *pebble.DB) map[string]string {
	it, err := db.NewIter(nil)
	if err != nil {
		rt.Fatal(err)
	}
	rows := make(map[string]string)
	for ok := it.First(); ok; ok = it.Next() {
		rows[string(it.Key())] = string(it.Value())
	}
	if err := it.Close(); err != nil {
		rt.Fatal(err)
	}
	return rows
}

// Rows as transactions of processors write them: states, messages, deadlines.
func BenchmarkMerge(b *testing.B) {
	db := open(b)
	var keys, values [][]byte
	for i := range 3000 {
		key := fmt.Sprint("bank/", i%1024)
		id := fmt.Sprint("event:4:loadmi5k2j4x1", i)
		for _, row := range []string{"k|" + key, fmt.Sprintf("r|%c%s%s", len(key), key, id), fmt.Sprintf("x|\x00\x00\x01\x9a\xb0\x01\x02%c%c%s%s", i/24, len(key), key, id)} {
			keys, values = append(keys, []byte(row)), append(values, make([]byte, 40))
		}
	}
	rows := rowsOf(b, db, keys, values)
	var m Merging
	b.ReportAllocs()
	for b.Loop() {
		into := db.NewBatch()
		if err := m.Merge(into, rows); err != nil {
			b.Fatal(err)
		}
		_ = into.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*3000), "ns/message")
}

// silent drops what Pebble says of itself.
type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
