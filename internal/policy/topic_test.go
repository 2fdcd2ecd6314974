package policy

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

func mustTopic(t interface{ Fatalf(string, ...any) }, text string) *topicPattern {
	p, wrong := parseTopic(item{text: text})
	if wrong != "" {
		t.Fatalf("%q: %s", text, wrong)
	}
	return p
}

// To subscribe to a filter takes a rule that matches every topic that the filter can match.
func TestCovers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, covered, not string // lists
	}{
		{"a/b", "a/b", "a a/+ a/# a/b/# a/c # +/b a/b/c"},
		{"a/+", "a/b a/+ a/", "a a/# a/b/c a/+/# +/b"},
		{"a/#", "a a/ a/b a/+ a/# a/+/# a/b/c", "b # + ab +/b"},
		{"#", "a a/b # + +/# a/# / +/+", "$SYS $SYS/# $share/g/a"},
		{"+", "a +", "# a/b +/# $SYS"},
		{"+/#", "a # + +/+ a/b a/#", "$SYS/x"},
		{"+/b", "a/b +/b", "a/+ +/+ $SYS/b +/#"},
		{"$SYS/#", "$SYS $SYS/x $SYS/# $SYS/+", "# +/x"},
		{"a/+/c", "a/b/c a/+/c", "a/#  a/+/+ a/+/c/#"},
		{"a/+/#", "a/b a/+ a/b/c a/+/# a/b/#", "a a/#"},
	} {
		p := mustTopic(t, c.pattern)
		for _, filter := range strings.Fields(c.covered) {
			if !p.covers([]byte(filter)) {
				t.Errorf("%q doesn't cover %q", c.pattern, filter)
			}
		}
		for _, filter := range strings.Fields(c.not) {
			if p.covers([]byte(filter)) {
				t.Errorf("%q covers %q", c.pattern, filter)
			}
		}
	}
}

// covers agrees with its definition: over all topics of a small alphabet, what the filter
// matches the pattern matches as well.
func TestCoversAgainstItsDefinition(t *testing.T) {
	t.Parallel()
	// Topics longer than every filter, and with a level that no filter names, find each
	// difference.
	var names []string
	var grow func(prefix string, left int)
	grow = func(prefix string, left int) {
		for _, l := range []string{"a", "b", "$s", "other"} {
			names = append(names, prefix+l)
			if left > 1 {
				grow(prefix+l+"/", left-1)
			}
		}
	}
	grow("", 5)
	draw := func(t *rapid.T, label string) string {
		levels := make([]string, rapid.IntRange(1, 4).Draw(t, label+" levels"))
		for i := range levels {
			levels[i] = rapid.SampledFrom([]string{"a", "b", "+", "$s"}).Draw(t, label)
		}
		if rapid.IntRange(0, 2).Draw(t, label+" multi") == 0 {
			levels[len(levels)-1] = "#"
		}
		return strings.Join(levels, "/")
	}
	rapid.Check(t, func(t *rapid.T) {
		pattern, filter := draw(t, "pattern"), draw(t, "filter")
		p := mustTopic(t, pattern)
		want := true
		for _, name := range names {
			if got := p.covers([]byte(name)); got != topic.Matches(pattern, []byte(name)) {
				t.Fatalf("%q, topic %q: got %v", pattern, name, got)
			}
			want = want && (!topic.Matches(filter, []byte(name)) || topic.Matches(pattern, []byte(name)))
		}
		if got := p.covers([]byte(filter)); got != want {
			t.Fatalf("%q covers %q: got %v, want %v", pattern, filter, got, want)
		}
	})
}
