package unapplied

import (
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

func newMemo(state string) *Memo {
	return &Memo{Memo: rows.Memo{What: &statestore.Memo{State: []byte(state)}}}
}

// A change stays in its overlay, and charged, until the database has its batch; then it leaves,
// unless a newer one has its place.
func TestChangesLeaveWhenTheyAreApplied(t *testing.T) {
	t.Parallel()
	var o Overlay
	var q Queue
	pool := memory.NewPool(1 << 20)
	a, b, newer := newMemo("a"), newMemo("b"), newMemo("newer")
	want := func(row string, want *Memo) {
		t.Helper()
		if got := o.Find([]byte(row)); got != want {
			t.Errorf("row %s: %v, want %v", row, got, want)
		}
	}
	q.Add(1, o.Add("1", a, pool))
	q.Add(2, o.Add("2", b, pool))
	charged := pool.UsedBy(memory.Remembered)
	if charged <= 0 {
		t.Errorf("%d bytes are charged for two changes", charged)
	}
	q.Drop(0, 9, pool)
	want("1", a)
	want("2", b)
	q.Add(3, o.Add("1", newer, pool))
	q.Drop(2, 1, pool)
	want("1", newer)
	want("2", b)
	q.Drop(2, 9, pool)
	want("1", newer)
	want("2", nil)
	q.Drop(3, 9, pool)
	want("1", nil)
	if used := pool.UsedBy(memory.Remembered); used != 0 || o.Len() != 0 {
		t.Errorf("%d bytes are charged, %d changes are left", used, o.Len())
	}
}

// What was added leaves in its order, and nothing is kept of what has left.
func TestQueue(t *testing.T) {
	t.Parallel()
	var q Queue
	take := func(applied int, want ...string) {
		t.Helper()
		for _, w := range want {
			if got := q.take(journal.Seq(applied), make([]Change, 0, 1)); len(got) != 1 || got[0].row != w {
				t.Errorf("%v; want %q", got, w)
			}
		}
		if got := q.take(journal.Seq(applied), make([]Change, 0, 1)); len(got) > 0 {
			t.Errorf("%q is left", got[0].row)
		}
	}
	add := func(batch journal.Seq, row string) { q.Add(batch, Change{row: row}) }
	take(9)
	add(1, "a")
	add(1, "b")
	add(2, "c")
	add(3, "d")
	take(2, "a", "b", "c")
	add(3, "e")
	take(2)
	for i := range 1000 {
		add(4, fmt.Sprint(i))
	}
	take(3, "d", "e")
	for i := range 1000 {
		if got := q.take(4, make([]Change, 0, 1)); len(got) != 1 || got[0].row != fmt.Sprint(i) {
			t.Fatalf("%d: %v", i, got)
		}
	}
	if n := len(q.items); n != 0 {
		t.Errorf("%d are kept of what was taken", n)
	}
}

func TestDecodeMemo(t *testing.T) {
	t.Parallel()
	if m, err := DecodeMemo([]byte("\xff nonsense"), 0); err == nil {
		t.Errorf("nonsense: %+v", m)
	}
	var none *Memo
	if none.Known() != nil || none.LastBatch() != 0 {
		t.Error("nil says something")
	}
}
