package watches

import (
	"fmt"
	"strings"
	"testing"
)

// As many changes as the queue's bound wait each for itself; at the bound a change replaces
// the newest one of its key, and one above it is there for each key.
func TestPending(t *testing.T) {
	t.Parallel()
	const most = 3
	var q pending
	push := func(words string) {
		for _, word := range strings.Fields(words) {
			q.push(Change{Key: word[:1], Value: []byte(word[1:])}, most)
		}
	}
	pop := func(n int) string {
		var all []string
		for range n {
			c := q.pop()
			text := c.Key + string(c.Value)
			if c.Gap {
				text += " gap"
			}
			all = append(all, text)
		}
		return strings.Join(all, ", ")
	}
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	push("a1 a2 b1")
	want(pop(1), "a1")
	push("a3")
	want(pop(3), "a2, b1, a3")
	push("a1 b1 a2 a3 b2 c1 c2 a4")
	want(pop(4), "a1, b2 gap, a4 gap, c2 gap")
	if !q.empty() || len(q.last) != 0 {
		t.Errorf("left: %v, %v", q.list, q.last)
	}
	for i := range 1000 {
		push(fmt.Sprintf("k%d", i))
	}
	if len(q.list) != most {
		t.Errorf("%d changes of one key wait, want %d", len(q.list), most)
	}
}
