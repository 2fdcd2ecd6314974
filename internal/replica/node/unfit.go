package node

// A node whose wall clock is wrong must not lead as long as another node can: package clocks says when.
// That is a wish, and not a rule that anything relies on. So a node that knows no leader for long asks for
// votes nevertheless: it may be the only one that has all entries.

// barPatience times the election timeout is how long a node that is unfit waits for another one to lead.
const barPatience = 5

// SetUnfit says which members should not lead, this node included.
func (n *Node) SetUnfit(unfit map[ID]bool) { n.unfit.Store(&unfit) }

func (n *Node) isUnfit(id ID) bool { return (*n.unfit.Load())[id] }

// lookAtClock bars this node from the leadership, or no longer. deciding is held.
func (n *Node) lookAtClock() {
	if n.core.Office().Leader != 0 {
		n.led = n.now()
	}
	n.core.Bar(n.isUnfit(n.ID()) && n.now()-n.led < barPatience*n.o.Election)
}

// WallMs is Options.WallMs.
func (n *Node) WallMs() int64 { return n.o.WallMs() }

// best is the other node that is furthest, among those that may lead if there are any; 0: there is none
// that answers. deciding is held.
func (n *Node) best() (best uint64) {
	var match uint64
	fit := false
	for id, p := range n.core.Progress() {
		if id == uint64(n.ID()) || !p.Active || p.Learner {
			continue
		}
		switch may := !n.isUnfit(ID(id)); {
		case may && !fit:
			best, match, fit = id, p.Match, true
		case may == fit && (best == 0 || p.Match > match):
			best, match = id, p.Match
		}
	}
	return best
}
