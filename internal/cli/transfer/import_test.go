package transfer

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/txn"
)

// Keys and messages are put together up to a number and to bytes, each key once, and what cannot be read is
// by itself. A resumed import has the same blocks of messages.
func TestBlocks(t *testing.T) {
	t.Parallel()
	key := func(name string, bytes int) entry { return entry{key: name, value: make([]byte, bytes)} }
	message := entry{message: &txn.Message{}}
	var many []entry
	for n := range blockKeys + 1 {
		many = append(many, key(fmt.Sprint(n), 0))
	}
	of := func(entries []entry, done int64, mostBytes int) (sizes []int) {
		for i := range entries {
			entries[i].line = int64(i + 1)
		}
		source := func(yield func(entry, error) bool) {
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
		}
		for b, err := range blocks(iter.Seq2[entry, error](source), done, mostBytes) {
			if err != nil {
				t.Error(err)
			}
			sizes = append(sizes, len(b))
		}
		return sizes
	}
	wrong := key("w", 0)
	wrong.wrong = errors.New("wrong")
	for name, test := range map[string]struct {
		entries []entry
		done    int64
		most    int
		want    []int
	}{
		"as many as may be, and one": {many, 0, blockBytes, []int{blockKeys, 1}},
		"a key twice":                {[]entry{key("a", 0), key("b", 0), key("a", 0), key("b", 0)}, 0, 1000, []int{2, 2}},
		"as large as may be":         {[]entry{key("a", 1000-2*(1+keyOverhead)), key("b", 0), key("c", 0)}, 0, 1000, []int{2, 1}},
		"one too large":              {[]entry{key("a", 0), key("b", 5000), key("c", 0)}, 0, 1000, []int{1, 1, 1}},
		"messages between keys":      {[]entry{key("a", 0), message, message, key("b", 0)}, 0, 1000, []int{1, 2, 1}},
		"resumed among keys":         {[]entry{key("a", 0), key("b", 0), message, message}, 1, 1000, []int{1, 2}},
		"what cannot be read":        {[]entry{key("a", 0), wrong, key("b", 0)}, 0, 1000, []int{1, 1, 1}},
	} {
		if got := of(test.entries, test.done, test.most); !slices.Equal(got, test.want) {
			t.Errorf("%s: blocks of %v, want %v", name, got, test.want)
		}
	}
}

// A line is read whole that is longer than what is read of the file at a time.
func TestLongLinesAreRead(t *testing.T) {
	t.Parallel()
	value := strings.Repeat("v", 3<<20)
	for e, err := range lines(strings.NewReader(`{"key":"k","value":"` + value + `"}`)) {
		if err != nil || string(e.value) != value {
			t.Errorf("%d bytes, %v; want %d", len(e.value), err, len(value))
		}
	}
}

// The write of a large value may take longer than that of a small one.
func TestTimeoutOf(t *testing.T) {
	t.Parallel()
	i := importing{timeout: 10 * time.Second}
	for bytes, want := range map[int]time.Duration{0: 10 * time.Second, 1<<20 - 1: 10 * time.Second, 1 << 20: 11 * time.Second, 256 << 20: 266 * time.Second} {
		if got := i.timeoutOf(bytes); got != want {
			t.Errorf("%d bytes: %v, want %v", bytes, got, want)
		}
	}
}
