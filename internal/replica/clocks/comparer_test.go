package clocks

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

const skew = 2 * bound

// machines are nodes whose clocks a test sets. The first is that of the Comparer.
type machines struct {
	mu    sync.Mutex
	since time.Duration            // of all monotonic clocks
	wall  map[string]time.Duration // ahead of the right time; a node that is not in it does not answer
	old   map[string]bool          // nodes that do not say what time it is
}

const right = 1_795_800_000_000 // the right time when the monotonic clocks are 0

func (m *machines) step(name string, ahead time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wall[name] = ahead
}

func (m *machines) away(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.wall, name)
}

func (m *machines) pass(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.since += d
}

func (m *machines) read() (wallMs int64, since time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return right + (m.since + m.wall["a"]).Milliseconds(), m.since
}

func (m *machines) ask(_ context.Context, name string) (Answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ahead, up := m.wall[name]
	if !up {
		return Answer{}, errors.New("it does not answer")
	}
	return Answer{Reading: Reading{Ahead: ahead - m.wall["a"]}, Known: !m.old[name]}, nil
}

// comparison is a Comparer of node a, which compares when the test says so.
type comparison struct {
	*machines
	*Comparer
	clock *Clock
	log   *logs.Text
	last  State
}

func newComparison(others ...string) *comparison {
	c := &comparison{machines: &machines{wall: map[string]time.Duration{"a": 0}, old: map[string]bool{}}, log: &logs.Text{}}
	for _, name := range others {
		c.wall[name] = 0
	}
	c.clock = NewClock(c.read, skew)
	c.Comparer = New(Options{
		Clock: c.clock, Skew: skew, Others: func() []string { return others }, Ask: c.machines.ask,
		Judged: func(s State) { c.last = s }, Logger: slog.New(slog.NewTextHandler(c.log, nil)),
	})
	return c
}

// shows is how far what the server reads is ahead of the right time.
func (c *comparison) shows() time.Duration {
	_, since := c.read()
	return time.Duration(c.clock.WallMs()-right)*time.Millisecond - since
}

// A step is not seen by the server until it was judged, and not at all if it was wrong.
func TestStepOfTheOwnClock(t *testing.T) {
	t.Parallel()
	c := newComparison("b", "c")
	c.compare(t.Context())
	for _, ahead := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		c.step("a", ahead)
		c.pass(time.Second)
		if got := c.shows(); got != 0 || !c.stepped() {
			t.Errorf("after a step of %v the server reads a clock that is %v ahead; stepped: %v", ahead, got, c.stepped())
		}
		c.compare(t.Context())
		c.pass(time.Minute)
		if got := c.shows(); got != 0 || !c.last.Wrong || c.last.Ahead != ahead {
			t.Errorf("after the step of %v was judged the server reads a clock that is %v ahead; %+v", ahead, got, c.last)
		}
		c.step("a", 0)
		if !c.stepped() {
			t.Error("a clock that was set right is not judged at once")
		}
		c.compare(t.Context())
		if c.last.Wrong {
			t.Errorf("a clock that was set right: %+v", c.last)
		}
	}
	for _, want := range []string{"the clock of this node is wrong", "ahead=2h0m0s", "ahead=-2h0m0s", "the clock of this node is right again"} {
		if !strings.Contains(c.log.String(), want) {
			t.Errorf("the log lacks %q:\n%v", want, c.log)
		}
	}
}

// A step that all nodes make, as after the machines were suspended, is followed.
func TestStepOfAllClocks(t *testing.T) {
	t.Parallel()
	c := newComparison("b", "c")
	c.compare(t.Context())
	for _, name := range []string{"a", "b", "c"} {
		c.step(name, time.Hour)
	}
	c.compare(t.Context())
	if got := c.shows(); got != time.Hour || c.last.Wrong {
		t.Errorf("the server reads a clock that is %v ahead: %+v", got, c.last)
	}
}

// Small steps are followed at once.
func TestSmallStep(t *testing.T) {
	t.Parallel()
	c := newComparison("b", "c")
	c.compare(t.Context())
	for _, ahead := range []time.Duration{skew / 8, -skew / 8} {
		c.step("a", ahead)
		if got := c.shows(); got != ahead || c.stepped() {
			t.Errorf("after a step of %v the server reads a clock that is %v ahead; stepped: %v", ahead, got, c.stepped())
		}
	}
	c.step("a", skew/8+time.Millisecond)
	if got := c.shows(); got != 0 || !c.stepped() {
		t.Errorf("after a larger step the server reads a clock that is %v ahead; stepped: %v", got, c.stepped())
	}
}

// Two nodes that differ: each goes on with its own clock, and says so.
func TestTwoNodesThatDiffer(t *testing.T) {
	t.Parallel()
	c := newComparison("b")
	c.compare(t.Context())
	c.step("a", 2*time.Hour)
	for range 3 {
		c.compare(t.Context())
	}
	if got := c.shows(); got != 2*time.Hour || c.last.Wrong || c.last.Majority {
		t.Errorf("the server reads a clock that is %v ahead: %+v", got, c.last)
	}
	if said := strings.Count(c.log.String(), "no majority of them agrees"); said != 1 {
		t.Errorf("the log says it %d times:\n%v", said, c.log)
	}
}

// A clock that was found wrong does not count again because those that have found it are gone: it may
// lead then, and the server goes on with the majority's time, until the clock is set.
func TestMajorityThatIsGone(t *testing.T) {
	t.Parallel()
	c := newComparison("b", "c")
	c.step("a", 2*time.Hour)
	c.compare(t.Context())
	for _, name := range []string{"b", "c"} {
		c.away(name)
		c.compare(t.Context())
		c.pass(time.Minute)
		if got := c.shows(); got != 0 || c.last.Wrong {
			t.Errorf("without %s the server reads a clock that is %v ahead: %+v", name, got, c.last)
		}
	}
	c.step("a", time.Second)
	c.compare(t.Context())
	if got := c.shows(); got != time.Second {
		t.Errorf("after the clock was set the server reads one that is %v ahead", got)
	}
}

// Nodes of the release before do not say what time it is: they count neither for nor against a clock.
func TestNodesThatDoNotSayTheTime(t *testing.T) {
	t.Parallel()
	c := newComparison("b", "c")
	c.old["c"] = true
	c.step("a", 2*time.Hour)
	c.compare(t.Context())
	if c.last.Wrong || len(c.last.Readings) != 1 {
		t.Errorf("%+v", c.last)
	}
	select {
	case <-c.First():
	default:
		t.Error("the server is kept waiting, although all nodes have answered")
	}
}

// The server waits until a majority agrees for the first time, or all have answered: as long as one of them is still
// starting, the other two of three may differ. It does not wait for good, and a node that is alone not at all.
func TestFirstComparison(t *testing.T) {
	t.Parallel()
	done := func(c *comparison) bool {
		select {
		case <-c.First():
			return true
		default:
			return false
		}
	}
	for name, test := range map[string]struct {
		others string
		wall   map[string]time.Duration // of the others that answer
		done   bool
		next   time.Duration
	}{
		"alone":                          {"", nil, true, interval},
		"no other one answers":           {"bc", nil, false, 0},
		"two of three agree":             {"bc", map[string]time.Duration{"b": time.Second}, true, interval},
		"two of three differ":            {"bc", map[string]time.Duration{"b": time.Hour}, false, 0},
		"both of two differ":             {"b", map[string]time.Duration{"b": time.Hour}, true, interval},
		"all three differ":               {"bc", map[string]time.Duration{"b": time.Hour, "c": 2 * time.Hour}, true, interval},
		"one of three is wrong":          {"bc", map[string]time.Duration{"b": time.Hour, "c": time.Hour}, true, interval},
		"two of five agree, two are out": {"bcde", map[string]time.Duration{"b": 0, "c": time.Hour}, true, interval},
	} {
		c := newComparison(strings.Split(test.others, "")...)
		for _, other := range strings.Split(test.others, "") {
			c.away(other)
		}
		for other, ahead := range test.wall {
			c.step(other, ahead)
		}
		next := c.compare(t.Context())
		if done(c) != test.done || next != test.next {
			t.Errorf("%s: done %v, and the next comparison in %v, want %v, %v", name, done(c), next, test.done, test.next)
		}
		for range earlyTries {
			next = c.compare(t.Context())
		}
		if !done(c) || !test.done && next != pause {
			t.Errorf("%s: after %d tries done %v, and the next comparison in %v", name, earlyTries, done(c), next)
		}
	}
}

// A step while the others are being asked makes their answers worthless.
func TestStepDuringAComparison(t *testing.T) {
	t.Parallel()
	c := newComparison("b", "c")
	c.compare(t.Context())
	before := c.last
	ask := c.o.Ask
	c.o.Ask = func(ctx context.Context, name string) (Answer, error) {
		c.step("a", 2*time.Hour)
		return ask(ctx, name)
	}
	c.step("b", 2*time.Hour)
	if wait := c.compare(t.Context()); wait != 0 || len(c.last.Readings) != len(before.Readings) || c.last.Readings[0].Ahead != before.Readings[0].Ahead {
		t.Errorf("%v until the next comparison, and the last one counts: %+v", wait, c.last)
	}
}
