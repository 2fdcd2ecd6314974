package table

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/slab"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// tableModel is a table beside what it should hold.
type tableModel struct {
	Table
	memory *slab.Memory
	want   map[string]*modelRecord
}

type modelRecord struct {
	entry    *statestore.Entry // nil: a tombstone
	deletion hlc.Timestamp
	batch    uint64
}

func newTableModel() *tableModel {
	outside := slab.NewMemory()
	table := New(Options{Seed: maphash.MakeSeed(), Node: "StateStore", Memory: outside})
	return &tableModel{Table: table, memory: outside, want: map[string]*modelRecord{}}
}

func (m *tableModel) hash(key string) uint64 { return maphash.String(m.seed, key) }

func (m *tableModel) put(key string, want *modelRecord) {
	r := m.Table.Put(m.Get([]byte(key), m.hash(key)), []byte(key), m.hash(key), want.entry, want.deletion)
	r.SetBatch(want.batch)
	m.want[key] = want
}

func (m *tableModel) remove(key string) {
	m.Table.Remove(m.Get([]byte(key), m.hash(key)), m.hash(key))
	delete(m.want, key)
}

// differs says how the key's record is not what it should be.
func (m *tableModel) differs(key string) string {
	r, want := m.Get([]byte(key), m.hash(key)), m.want[key]
	switch {
	case (r.Exists()) != (want != nil):
		return fmt.Sprintf("found: %v", r.Exists())
	case want == nil:
		return ""
	case r.Batch() != want.batch:
		return fmt.Sprintf("batch %d, want %d", r.Batch(), want.batch)
	case want.entry == nil:
		if r.Live() || m.Version(r) != want.deletion {
			return fmt.Sprintf("live: %v, version %v, want a tombstone of %v", r.Live(), m.Version(r), want.deletion)
		}
		return ""
	}
	var got statestore.Entry
	m.FencedEntry(r, &got)
	if !bytes.Equal(got.Value, want.entry.Value) || got.Version != want.entry.Version || got.Token != want.entry.Token || got.DeadlineMs != want.entry.DeadlineMs {
		return fmt.Sprintf("%+v, want %+v", got, want.entry)
	}
	return ""
}

// checkDeadlines looks at the heap: in order, complete, and known to its records.
func (m *tableModel) checkDeadlines(t *rapid.T) {
	expiring := 0
	for _, want := range m.want {
		if want.entry != nil && want.entry.DeadlineMs != 0 {
			expiring++
		}
	}
	if len(m.deadlines) != expiring {
		t.Fatalf("%d deadlines, want %d", len(m.deadlines), expiring)
	}
	for i, d := range m.deadlines {
		if r := m.at(d.ref); r.place() != i || r.DeadlineMs() != d.ms || d.ms < m.deadlines[max(0, i-1)/2].ms {
			t.Fatalf("deadline %d of %d ms: its record has %d ms at %d", i, d.ms, r.DeadlineMs(), r.place())
		}
	}
}

func drawTableStamp(t *rapid.T, label string) hlc.Timestamp {
	ts := hlc.Timestamp{
		Wall:    rapid.OneOf(rapid.Uint64Range(0, low48), rapid.Uint64()).Draw(t, label+" wall"),
		Counter: rapid.OneOf(rapid.Uint64Range(1, math.MaxUint32), rapid.Uint64()).Draw(t, label+" counter"),
	}
	ts.Node = rapid.SampledFrom([]string{"StateStore", "StateStore", "other", "a node with a longer name"}).Draw(t, label+" node")
	return ts
}

func drawEntry(t *rapid.T) *statestore.Entry {
	sizes := rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(0, 2*MaxSlot))
	e := &statestore.Entry{
		Value:   bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, sizes.Draw(t, "size")),
		Version: drawTableStamp(t, "version"),
	}
	if rapid.Bool().Draw(t, "fenced") {
		e.Token = drawTableStamp(t, "token")
	}
	if rapid.Bool().Draw(t, "expires") {
		e.DeadlineMs = rapid.Int64Range(1, math.MaxInt64).Draw(t, "deadline")
	}
	return e
}

// Entries, deletions and what goes with them come and go in any order, with keys and
// values of any size: each key has what was put there last.
func TestTableAgainstAMap(t *testing.T) {
	t.Parallel()
	longKey := string(bytes.Repeat([]byte("k"), maxShortKey))
	rapid.Check(t, func(t *rapid.T) {
		m := newTableModel()
		keys := rapid.OneOf(
			rapid.Map(rapid.IntRange(0, 999), func(i int) string { return fmt.Sprint("key-", i) }),
			rapid.SampledFrom([]string{"a", longKey, longKey + "1", longKey + "2"}),
		)
		seen := map[string]bool{}
		for range rapid.IntRange(1, 500).Draw(t, "steps") {
			key := keys.Draw(t, "key")
			seen[key] = true
			batch := rapid.Uint64Range(0, low48).Draw(t, "batch")
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
			case what == 0 && m.want[key] != nil:
				m.remove(key)
			case what < 3:
				m.put(key, &modelRecord{deletion: drawTableStamp(t, "deletion"), batch: batch})
			default:
				m.put(key, &modelRecord{entry: drawEntry(t), batch: batch})
			}
		}
		for key := range seen {
			if how := m.differs(key); how != "" {
				t.Fatalf("%.20q: %s", key, how)
			}
		}
		m.checkDeadlines(t)
		for key := range m.want {
			m.remove(key)
		}
		if m.Len() != 0 || len(m.deadlines) != 0 || len(m.freeLarge) != len(m.large) {
			t.Fatalf("%d records, %d deadlines, %d of %d large bodies are free", m.Len(), len(m.deadlines), len(m.freeLarge), len(m.large))
		}
	})
}

// A key of 32 bytes with a value of 64 takes 120 bytes and its share of the index,
// also after it was overwritten and others have come and gone.
func TestBytesOfAKey(t *testing.T) {
	t.Parallel()
	const keys, most = 20_000, 140
	m := newTableModel()
	key := func(i int) string { return fmt.Sprintf("%032d", i) }
	entry := func(value int) *modelRecord {
		return &modelRecord{entry: &statestore.Entry{
			Value:   make([]byte, value),
			Version: hlc.Timestamp{Wall: 1_700_000_000_000, Counter: 1, Node: "StateStore"},
		}}
	}
	for i := range 2 * keys {
		m.put(key(i), entry(i%500))
	}
	for i := range keys {
		m.remove(key(i))
	}
	for range 3 {
		for i := keys; i < 2*keys; i++ {
			m.put(key(i), entry(64))
		}
	}
	if per := m.memory.Bytes() / keys; per > most {
		t.Errorf("%d bytes for each key, more than %d", per, most)
	}
}
