package topic

import "testing"

func TestOverlap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a/+", "+/b", true}, {"a/+", "b/+", false}, {"a/#", "a", true}, {"a", "a/#", true},
		{"a/b/#", "a", false}, {"#", "a/b/c", true}, {"a/+/c", "a/b/d", false}, {"a/+", "a/b/c", false}, {"a//b", "a/+/b", true},
	} {
		if Overlap(c.a, c.b) != c.want || Overlap(c.b, c.a) != c.want {
			t.Errorf("%q and %q: want %v", c.a, c.b, c.want)
		}
	}
}
