package client

import (
	"fmt"
	"testing"
)

func TestEveryKeyIsInAWindow(t *testing.T) {
	t.Parallel()
	s := Script{Window: 16}
	for i := range 20 {
		s.Keys = append(s.Keys, fmt.Sprint("key-", i))
	}
	seen := map[string]bool{}
	for _, w := range s.windows() {
		if len(w) != 16 {
			t.Errorf("a window of %d", len(w))
		}
		for _, k := range w {
			seen[k] = true
		}
	}
	if len(seen) != 20 {
		t.Errorf("%d of 20 keys are asked for", len(seen))
	}
}
