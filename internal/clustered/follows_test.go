package clustered

import (
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

// A node that follows is ready up to the bound of its lag, and not beyond.
func TestFollows(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status node.Status
		want   string
	}{
		"it has everything":           {node.Status{Role: node.Follower, Leader: 1, LagKnown: true}, ""},
		"at the bound":                {node.Status{Role: node.Follower, Leader: 1, LagKnown: true, Lag: maxReadyLag}, ""},
		"beyond the bound":            {node.Status{Role: node.Follower, Leader: 1, LagKnown: true, Lag: maxReadyLag + 1}, "this node lacks 10001 entries of the log"},
		"the leader has not spoken":   {node.Status{Role: node.Follower, Leader: 1}, "the leader has not said yet"},
		"no leader":                   {node.Status{Role: node.Candidate, LagKnown: true}, "this node knows no leader"},
		"a snapshot":                  {node.Status{Role: node.Receiving, Leader: 1, LagKnown: true, Received: 5, ReceiveBytes: 9}, "the leader sends this node all data: 5 of 9 bytes"},
		"a full disk":                 {node.Status{Role: node.Follower, Leader: 1, LagKnown: true, DiskFull: true}, "the disk of this node is full"},
		"it leads, and is not yet up": {node.Status{Role: node.Leader, Leader: 1, LagKnown: true}, "this node has become the leader"},
	} {
		got := strings.Join(follows(&test.status), "; ")
		if test.want == "" && got != "" || !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
