package engine

import (
	"fmt"
	"strings"
	"testing"
)

// Every key that there is weighs the bytes of its key and value, small or large, and one that was
// deleted nothing.
func TestWeigh(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	want := map[string]int64{}
	for i := range 3000 {
		key, value := fmt.Sprint("k", i), strings.Repeat("x", 1+i*7%200)
		if i%1000 == 0 {
			value = strings.Repeat("x", 100_000)
		}
		a.do("SET " + key + " " + value)
		want[key] = int64(len(key) + len(value))
	}
	for i := 0; i < 3000; i += 3 {
		key := fmt.Sprint("k", i)
		a.do("DEL " + key)
		delete(want, key)
	}
	w.e.Weigh(func(key []byte, bytes int64) {
		if want[string(key)] != bytes {
			t.Errorf("%s weighs %d, want %d", key, bytes, want[string(key)])
		}
		delete(want, string(key))
	})
	if len(want) > 0 {
		t.Errorf("%d keys were left out", len(want))
	}
}
