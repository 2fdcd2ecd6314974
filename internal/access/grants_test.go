package access

import (
	"strings"
	"testing"
)

// A name is remembered byte for byte, for one version, up to a length.
func TestRemembered(t *testing.T) {
	t.Parallel()
	longest := []byte(strings.Repeat("n", maxRemembered))
	var r Remembered
	if r.Is(0, nil) || r.Is(1, nil) {
		t.Error("a name is remembered that was never allowed")
	}
	for _, name := range [][]byte{[]byte("a/b"), longest, {}} {
		r.Remember(7, name)
		if !r.Is(7, name) {
			t.Errorf("%q is not remembered", name)
		}
		for _, other := range [][]byte{[]byte("a/B"), []byte("a/bb"), append(longest, 'n')} {
			if r.Is(7, other) {
				t.Errorf("%q is taken for %q", other, name)
			}
		}
		if r.Is(8, name) || r.Is(0, name) {
			t.Errorf("%q is remembered for another version", name)
		}
	}
	r.Remember(9, append(longest, 'n'))
	if r.Is(9, append(longest, 'n')) {
		t.Errorf("a name of %d bytes is remembered, which is more than %d", maxRemembered+1, maxRemembered)
	}
	r.Remember(0, []byte("a/b"))
	if r.Is(0, []byte("a/b")) {
		t.Error("a name is remembered although each decision must be asked for")
	}
}
