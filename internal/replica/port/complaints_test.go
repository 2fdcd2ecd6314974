package port

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// The log says the same of the same host once in ten seconds, and what it remembers for that is bounded.
func TestComplaints(t *testing.T) {
	t.Parallel()
	c, now := newComplaints(), time.Now()
	bad, worse := errors.New("bad certificate"), errors.New("no certificate")
	for i, step := range []struct {
		address string
		err     error
		after   time.Duration
		want    bool
	}{
		{"10.0.0.1:1000", bad, 0, true},
		{"10.0.0.1:1001", bad, complaintPause - 1, false},
		{"10.0.0.1:1002", worse, complaintPause - 1, true},
		{"10.0.0.2:1003", bad, complaintPause - 1, true},
		{"10.0.0.1:1004", bad, complaintPause, true},
	} {
		if got := c.due(step.address, step.err, now.Add(step.after)) == step.err.Error(); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
	for i := range 10 * maxComplaints {
		c.due(fmt.Sprintf("[2001:db8::%x]:1", i), bad, now)
	}
	said := <-c
	if len(said) > maxComplaints {
		t.Errorf("%d complaints are remembered, and %d may be", len(said), maxComplaints)
	}
}

// Of a host that is refused for another reason each time, for example one that quotes what it has sent, the log has a
// few reasons, and the beginning of each.
func TestComplaintsOfAHostThatMakesThemUp(t *testing.T) {
	t.Parallel()
	c, now, said := newComplaints(), time.Now(), 0
	for i := range 10 * maxReasons {
		reason := c.due("10.0.0.1:1000", fmt.Errorf("%d %s", i, strings.Repeat("é", maxReason)), now)
		if len(reason) > maxReason+len("…") || !utf8.ValidString(reason) {
			t.Fatalf("%d bytes: %q", len(reason), reason)
		}
		if reason != "" {
			said++
		}
	}
	if said != maxReasons {
		t.Errorf("the log says %d reasons, and %d may be", said, maxReasons)
	}
	exact := errors.New(strings.Repeat("x", maxReason))
	if reason := c.due("10.0.0.1:1000", exact, now.Add(complaintPause)); reason != exact.Error() {
		t.Errorf("a reason of %d bytes is %q", maxReason, reason)
	}
}
