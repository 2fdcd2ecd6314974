package control

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/clocks"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

// askNode asks another node for its status, and compares its clock with this node's.
func askNode(ctx context.Context, n *node.Node, m node.Member) (s node.Status, clock clocks.Answer, err error) {
	began := time.Now()
	c, err := n.Dial(ctx, m.ID, StatusMagic)
	if err != nil {
		return s, clock, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if s, err = readStatus(ctx, c); err != nil || s.WallMs == 0 {
		return s, clock, err
	}
	// It was that time there at some moment of what has passed.
	half := time.Since(began) / 2
	ahead := time.Duration(s.WallMs-n.WallMs())*time.Millisecond + half
	return s, clocks.Answer{Reading: clocks.Reading{Name: m.Name, Ahead: ahead, Within: half + time.Millisecond}, Known: true, Unfit: s.Unfit}, nil
}

// AskClock asks the member of this name what time it is.
func (r *Reporter) AskClock(ctx context.Context, name string) (clock clocks.Answer, err error) {
	own := r.node.Status()
	m, err := find(&own, name)
	if err == nil {
		_, clock, err = askNode(ctx, r.node, m)
	}
	return clock, err
}

// clocksAhead is how far the clock of each node that has answered is ahead of the median of a majority's
// or, if there is none, of the clock of the node base, which has asked. One that may be right is left out.
func clocksAhead(all []answered, spread time.Duration) (ahead map[string]time.Duration, base string) {
	var readings []clocks.Reading
	own := ""
	for _, a := range all {
		switch {
		case a.err != nil:
		case a.clock.Known:
			readings = append(readings, a.clock.Reading)
		case a.clock.Name != "":
			own = a.clock.Name
		}
	}
	j := clocks.Judge(readings, spread)
	ahead = map[string]time.Duration{own: j.Ahead}
	for _, r := range readings {
		if off := r.Ahead + j.Ahead; off.Abs() > r.Within {
			ahead[r.Name] = off
		}
	}
	if !j.Majority && len(readings) > 0 {
		base = own
	}
	return ahead, base
}

// clockWorthSaying is from which on an operator is told how far a clock is from the others'.
const clockWorthSaying = time.Second

// Clocks says which clocks are not right, a line for each.
func (r *Report) Clocks() (lines []string) {
	for _, n := range r.Nodes {
		ahead := time.Duration(n.ClockAheadMs) * time.Millisecond
		if ahead.Abs() < clockWorthSaying && !n.Unfit {
			continue
		}
		where, of := "ahead of", "those of the other nodes"
		if ahead < 0 {
			where = "behind"
		}
		if r.ClockBase != "" {
			of = "that of node " + r.ClockBase + ", and no majority of the nodes agrees"
		}
		line := fmt.Sprintf("The clock of node %s is %v %s %s.", n.Name, ahead.Abs().Round(100*time.Millisecond), where, of)
		if ahead == 0 { // the node says that it is wrong, and by how much is not known
			line = fmt.Sprintf("The clock of node %s is wrong.", n.Name)
		}
		if n.Unfit {
			line += " It does not lead as long as another node can: set its clock right."
		}
		lines = append(lines, line)
	}
	return lines
}
