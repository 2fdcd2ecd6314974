package unapplied

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// What was added leaves in its order, and not before its batch is applied.
func TestQueue(t *testing.T) {
	t.Parallel()
	var q Queue[string]
	take := func(applied int, want ...string) {
		t.Helper()
		for _, w := range want {
			if got, ok := q.Take(journal.Seq(applied)); !ok || got != w {
				t.Errorf("%q, %v; want %q", got, ok, w)
			}
		}
		if got, ok := q.Take(journal.Seq(applied)); ok {
			t.Errorf("%q is left", got)
		}
	}
	take(9)
	q.Add(1, "a")
	q.Add(1, "b")
	q.Add(2, "c")
	q.Add(3, "d")
	take(2, "a", "b", "c")
	q.Add(3, "e")
	take(2)
	for i := range 1000 {
		q.Add(4, string(rune('0'+i%10)))
	}
	for i := range 1002 {
		got, ok := q.Take(4)
		if want := "de"; i < 2 && got != want[i:i+1] || i >= 2 && got != string(rune('0'+(i-2)%10)) || !ok {
			t.Fatalf("%d: %q, %v", i, got, ok)
		}
	}
	if n := len(q.items); n != 0 {
		t.Errorf("%d are kept of what was taken", n)
	}
}
