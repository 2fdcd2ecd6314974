package engine

import (
	"fmt"
	"slices"
	"testing"
)

// Keys that SCAN does not list are found in another way.
func TestBinaryKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	var want []string
	for i := range 3 {
		want = append(want, fmt.Sprintf("\xff%d", i))
		a.do(fmt.Sprintf("SET \xff%d v", i))
		a.do(fmt.Sprintf("SET text/%d v", i))
	}
	a.do("SET gone\xff v")
	a.do("DEL gone\xff")
	var got []string
	list := func(most int) {
		t.Helper()
		got = nil
		err := w.e.BinaryKeys(func(key []byte) bool { got = append(got, string(key)); return len(got) < most })
		if err != nil {
			t.Fatal(err)
		}
	}
	if list(10); !slices.Equal(got, want) {
		t.Errorf("listed were %q, want %q", got, want)
	}
	if list(2); !slices.Equal(got, want[:2]) {
		t.Errorf("listed were %q after the second was enough", got)
	}
}
