package clocks

import (
	"context"
	"log/slog"
	"sort"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
)

// How often a node compares its clock.
const (
	interval = 10 * time.Second       // between two comparisons
	pause    = time.Second            // the same while there is no majority, and a node has not answered
	look     = 250 * time.Millisecond // between two looks whether the own clock was stepped
	timeout  = 2 * time.Second        // for the answers of all nodes
	early    = time.Second            // the same until the clock was judged for the first time
	// earlyTries is how many comparisons, one at each look, the first judgement of a majority may take.
	earlyTries = 40
)

// Answer is what another node has said.
type Answer struct {
	Reading
	Known bool // it has said what time it is, which programs of the release before do not
	Unfit bool // it has found its own clock wrong
}

// Options of New. All are needed.
type Options struct {
	Clock *Clock
	// Skew is how far a version may be ahead of the clock.
	Skew time.Duration
	// Others are the names of the other nodes that have a vote.
	Others func() []string
	// Ask asks one of them for the time, until ctx ends. It is called by several goroutines.
	Ask func(ctx context.Context, name string) (Answer, error)
	// Judged is called after each comparison, by the goroutine of Run.
	Judged func(State)
	Logger *slog.Logger
}

// State is how the last comparison ended.
type State struct {
	Judgement
	Readings []Reading // of the nodes that have answered, by name
	Unfit    []string  // those that have found their own clocks wrong
}

// Comparer compares a node's clock with the others'. Its methods are safe for concurrent use.
type Comparer struct {
	o     Options
	state atomic.Pointer[State]
	first chan struct{} // see First

	// Those of the goroutine of Run.
	judged    int64 // Clock.reference at the last judgement
	wrong     bool  // by the last judgement of a majority, at which the reference was foundAt
	foundAt   int64
	said      State
	saidApart bool
	known     bool // first is closed
	tries     int  // until then
}

// New makes a Comparer.
func New(o Options) *Comparer {
	c := &Comparer{o: o, first: make(chan struct{}), judged: o.Clock.reference()}
	c.state.Store(&State{})
	return c
}

// State is that of the last comparison.
func (c *Comparer) State() State { return *c.state.Load() }

// First is closed when a majority agrees for the first time, or all others have answered, or it has come to neither
// for long.
func (c *Comparer) First() <-chan struct{} { return c.first }

// Bound is how far a clock may be from the majority's.
func (c *Comparer) Bound() time.Duration { return c.o.Skew / 2 }

// Run compares until ctx ends.
func (c *Comparer) Run(ctx context.Context) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for next := time.Now(); ; {
		if !time.Now().Before(next) || c.stepped() {
			next = time.Now().Add(c.compare(ctx))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// stepped says whether the machine's clock was, since it was judged.
func (c *Comparer) stepped() bool { return !c.o.Clock.near(c.o.Clock.reference(), c.judged) }

// compare makes one comparison, and says when the next one is due.
func (c *Comparer) compare(ctx context.Context) time.Duration {
	reference, others := c.o.Clock.reference(), c.o.Others()
	answers := c.ask(ctx, others)
	if ctx.Err() != nil || !c.o.Clock.near(c.o.Clock.reference(), reference) {
		return 0 // a step while they were asked
	}
	var s State
	for _, a := range answers {
		if a.Known {
			s.Readings = append(s.Readings, a.Reading)
		}
		if a.Unfit {
			s.Unfit = append(s.Unfit, a.Name)
		}
	}
	s.Judgement = Judge(s.Readings, c.Bound())
	c.judged = reference
	c.follow(reference, s.Judgement)
	c.state.Store(&s)
	done := s.Majority || len(answers) == len(others)
	if c.tries++; !c.known && (done || c.tries >= earlyTries) {
		c.known = true
		close(c.first)
	}
	c.say(s)
	c.o.Judged(s)
	switch {
	case done:
		return interval
	case c.known:
		return pause
	}
	return 0
}

// ask asks all others at once.
func (c *Comparer) ask(ctx context.Context, others []string) (answers []Answer) {
	patience := timeout
	if !c.known {
		patience = early
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all := make(chan *Answer, len(others))
	for _, name := range others {
		go func() {
			defer failstop.End(c.o.Logger, "the comparison of clocks")
			a, err := c.o.Ask(ctx, name)
			if a.Name = name; err != nil {
				all <- nil
				return
			}
			all <- &a
		}()
	}
	for range others {
		if a := <-all; a != nil {
			answers = append(answers, *a)
		}
	}
	sort.Slice(answers, func(i, j int) bool { return answers[i].Name < answers[j].Name })
	return answers
}

// follow has the Clock show the right time. A clock that a majority has found wrong stays so when
// the majority is gone, until it is stepped.
func (c *Comparer) follow(reference int64, j Judgement) {
	switch {
	case j.Wrong:
		c.wrong, c.foundAt = true, reference
		c.o.Clock.follow(reference, -j.Ahead.Milliseconds())
	case !j.Majority && c.wrong && c.o.Clock.near(reference, c.foundAt):
	default:
		c.wrong = false
		c.o.Clock.follow(reference, 0)
	}
}

// say logs what has changed.
func (c *Comparer) say(s State) {
	log := c.o.Logger
	switch {
	case s.Wrong && !c.said.Wrong:
		log.Error("the clock of this node is wrong, so it does not lead as long as another node can: set the clock right (chrony, ntpd or systemd-timesyncd)",
			"ahead", s.Ahead.Round(time.Millisecond), "of the nodes", s.Agree, "allowed", c.Bound())
	case c.said.Wrong && s.Majority && !s.Wrong:
		log.Info("the clock of this node is right again: it may lead", "ahead", s.Ahead.Round(time.Millisecond), "of the nodes", s.Agree)
	case c.said.Wrong && !s.Majority:
		log.Warn("the clock of this node is wrong, and no majority of nodes that answer agrees any more: it may lead; versions go on by the clocks of the former majority until the clock is set")
	}
	apart := !s.Majority && len(s.Readings) > 0 && c.known // before, a node that is starting may agree
	if apart && !c.saidApart && !c.said.Wrong {
		args := []any{"allowed", c.Bound()}
		for _, r := range s.Readings {
			args = append(args, r.Name+" is ahead", r.Ahead.Round(time.Millisecond))
		}
		log.Warn("the clocks of the nodes that answer differ, and no majority of them agrees: this node goes on with its own; set right the one that is wrong", args...)
	}
	c.said, c.saidApart = s, apart
}
