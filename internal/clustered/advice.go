package clustered

import (
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
)

const (
	advicePause = 500 * time.Millisecond // between two looks whether this node knows the cluster's nodes
	adviceLag   = 1000                   // entries that it may lack then: others write
)

// advise warns when the cluster has a number of nodes that survives less than one would think. It waits until this
// node has the entries that its log had at the start, and knows how far the leader is: its database may be of a time
// when the cluster had other nodes.
func (n *Node) advise() {
	defer failstop.End(n.log, "advice about the number of nodes")
	look := time.NewTicker(advicePause)
	defer look.Stop()
	for had := n.node.Status().Last; ; {
		select {
		case <-look.C:
		case <-n.ending.Done():
			return
		}
		if s := n.node.Status(); s.Committed >= had && s.LagKnown && s.Lag < adviceLag {
			voters := 0
			for _, m := range s.Members {
				if !m.Learner {
					voters++
				}
			}
			for _, w := range settings.Advice(voters) {
				n.log.Warn(w)
			}
			return
		}
	}
}
