package clustered

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/replica/clocks"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

// clockPatience is how long a server that is about to serve clients waits at most until the clock was judged
// for the first time, which takes a node that has just started some milliseconds.
const clockPatience = 5 * time.Second

// timekeeper compares the node's clock with the others', and has the node lead accordingly.
type timekeeper struct {
	n        *Node
	clock    *clocks.Clock
	comparer *clocks.Comparer
}

// maxSkew is how far a version may be ahead of the clock.
func (n *Node) maxSkew() time.Duration { return cmp.Or(n.config.MaxClockSkew, engine.DefaultMaxSkew) }

// reporter answers for the node. It compares clocks as the node's own comparison does.
func (n *Node) reporter() *control.Reporter { return control.NewReporter(n.node, n.maxSkew()/2) }

// newClock makes the clock that all servers of the node read.
func (n *Node) newClock() *clocks.Clock {
	read := clocks.System()
	if c := n.config.Clock; c != nil {
		read = func() (int64, time.Duration) { return c.WallMs(), c.SinceStart() }
	}
	return clocks.NewClock(read, n.maxSkew())
}

// keepTime begins to compare clocks.
func (n *Node) keepTime(clock *clocks.Clock) {
	t := &timekeeper{n: n, clock: clock}
	t.comparer = clocks.New(clocks.Options{
		Clock: clock, Skew: n.maxSkew(), Others: t.others, Ask: n.reporter().AskClock, Judged: t.judged, Logger: n.log,
	})
	n.time.Store(t)
	n.running.Go(func() {
		defer failstop.End(n.log, "the comparison of clocks")
		t.comparer.Run(n.ending)
	})
}

// others are the names of the other nodes that have a vote.
func (t *timekeeper) others() (names []string) {
	s := t.n.node.Status()
	for _, m := range s.Members {
		if m.ID != s.ID && !m.Learner {
			names = append(names, m.Name)
		}
	}
	return names
}

// awaitClock gives the clock when it was judged, or after clockPatience.
func (t *timekeeper) awaitClock() engine.Clock {
	patience := time.NewTimer(clockPatience)
	defer patience.Stop()
	select {
	case <-t.comparer.First():
	case <-patience.C:
	case <-t.n.ending.Done():
	}
	return t.clock
}

// clocks is how the last comparison ended.
func (n *Node) clocks() (s clocks.State) {
	if t := n.time.Load(); t != nil {
		s = t.comparer.State()
	}
	return s
}

// judged follows what a comparison has shown.
func (t *timekeeper) judged(s clocks.State) {
	own := t.n.node.Status()
	unfit := map[node.ID]bool{own.ID: s.Wrong}
	for _, m := range own.Members {
		if slices.Contains(s.Unfit, m.Name) {
			unfit[m.ID] = true
		}
	}
	t.n.node.SetUnfit(unfit)
	if s.Wrong && own.Role == node.Leader {
		t.handOver(own.Members, s, unfit)
	}
}

// handOver gives the leadership, which this node has, to one of those whose clocks are right. It keeps it if
// none of them could serve clients at once: until then versions are right, by the majority's clock.
func (t *timekeeper) handOver(members []node.Member, s clocks.State, unfit map[node.ID]bool) {
	if server := t.n.serving.Load(); server != nil {
		if ahead := server.VersionsAhead(); ahead > t.n.maxSkew() {
			t.n.log.Warn("the clock of this node is wrong, and it goes on leading: versions are so far ahead of the right time that no other node would serve clients yet", "ahead", ahead)
			return
		}
	}
	to, found := successor(members, s.Agree, unfit)
	if !found {
		t.n.log.Warn("the clock of this node is wrong, and it goes on leading: no node whose clock is right has all entries", "nodes", s.Agree)
		return
	}
	t.n.log.Warn("giving the leadership away, because the clock of this node is wrong", "to", to.Name)
	ctx, cancel := context.WithTimeout(t.n.ending, transferTimeout)
	defer cancel()
	if err := t.n.node.Transfer(ctx, to.ID); err != nil {
		t.n.log.Warn("no other node has taken the leadership", "error", err)
	}
}

// successor is the node with a right clock that lacks least, if one can lead.
func successor(members []node.Member, agree []string, unfit map[node.ID]bool) (best node.Member, found bool) {
	for _, m := range members {
		may := slices.Contains(agree, m.Name) && m.Active && !m.Learner && !unfit[m.ID] && m.Lag <= maxReadyLag
		if may && (!found || m.Lag < best.Lag) {
			best, found = m, true
		}
	}
	return best, found
}
