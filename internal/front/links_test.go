package front

import (
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
)

// A front asks the nodes that it was given and those that the cluster has now. It forgets those that were replaced,
// so that it learns new ones however many there have been.
func TestNodesThatAFrontAsks(t *testing.T) {
	t.Parallel()
	l := newLinks(&Front{o: Options{Peers: []settings.Peer{{Name: "a", Address: "a:1"}, {Name: "b", Address: "b:1"}}}})
	for i := range 3 * maxNodes {
		added := fmt.Sprintf("n%d:1", i)
		l.remember([]node.Member{{Address: "a:1"}, {Address: added}, {Address: ""}})
		if want := []string{"a:1", "b:1", added}; !slices.Equal(l.nodes, want) {
			t.Fatalf("it asks %v, want %v", l.nodes, want)
		}
	}
	many := make([]node.Member, 2*maxNodes)
	for i := range many {
		many[i].Address = fmt.Sprintf("m%d:1", i)
	}
	if l.remember(many); len(l.nodes) != maxNodes {
		t.Errorf("it asks %d nodes, want %d", len(l.nodes), maxNodes)
	}
}
