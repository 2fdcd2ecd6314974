package node

import "time"

// The consensus sends a batch at once only to as many nodes as it needs for a quorum, by what they did
// lately. When one of these does not answer as soon as usual, the others get the batch as well.
const (
	usualTimes = 4 // what a batch usually takes is how long it may take until then,
	minHurry   = 5 * time.Millisecond
	maxHurry   = 50 * time.Millisecond
)

// hurrying looks whether batches are committed as soon as usual. Node.deciding guards it.
type hurrying struct {
	timer    *time.Timer
	runs     bool          // the timer
	proposed time.Duration // when the batch that is under way was, by Node.now
	usual    time.Duration // that a batch takes
}

// patience is how long a batch may take until it is late.
func (h *hurrying) patience() time.Duration { return min(max(usualTimes*h.usual, minHurry), maxHurry) }

// begin tells that a batch is under way. The timer is not set for each of them: it looks, when it has
// come, at the one of that moment.
func (h *hurrying) begin(now time.Duration) {
	h.proposed = now
	if !h.runs {
		h.runs = true
		h.timer.Reset(h.patience())
	}
}

// end tells that it is committed.
func (h *hurrying) end(now time.Duration) { h.usual += (now - h.proposed - h.usual) / 8 }

// hurry is called by the timer.
func (n *Node) hurry() {
	defer n.guard("the watcher of batches")
	n.do(func() {
		h := &n.hurrying
		if h.runs = n.proposed != nil; !h.runs {
			return
		}
		left := h.proposed + h.patience() - n.now()
		if left <= 0 {
			n.core.Hurry()
			left = h.patience()
		}
		h.timer.Reset(left)
	})
}
