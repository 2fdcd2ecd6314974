package overview_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/broker/registry"
	"github.com/holdfast-mqtt/holdfast/internal/overview"
)

// Of many keys the heaviest are kept, in their order, and one that comes twice is there once.
func TestHeaviestKeys(t *testing.T) {
	t.Parallel()
	for _, most := range []int{0, 1, 3, 100} {
		keys := overview.Keys{Most: most}
		for i := range 1000 {
			n := i * 379 % 1000 // each number once
			keys.Add(fmt.Append(nil, n), int64(n))
			keys.Add(fmt.Append(nil, n), int64(n))
		}
		var want []overview.Key
		for n := 999; len(want) < most; n-- {
			want = append(want, overview.Key{Key: fmt.Append(nil, n), Bytes: int64(n)})
		}
		same := func(x, y overview.Key) bool { return string(x.Key) == string(y.Key) && x.Bytes == y.Bytes }
		if got := keys.List(); !slices.EqualFunc(got, want, same) {
			t.Errorf("the %d heaviest are %v", most, got)
		}
	}
}

// A session weighs what its queue has, and what its client's socket has not taken.
func TestHeaviestSessions(t *testing.T) {
	t.Parallel()
	sessions := overview.Sessions{Most: 2}
	for _, s := range []registry.Info{
		{ClientID: "a", QueuedBytes: 10}, {ClientID: "b", QueuedBytes: 5, Link: &registry.Link{Output: 6}}, {ClientID: "c"}, {ClientID: "d", QueuedBytes: 12},
	} {
		sessions.Add(s)
	}
	if got := sessions.List(); len(got) != 2 || got[0].ClientID != "d" || got[1].ClientID != "b" {
		t.Errorf("the heaviest are %v", got)
	}
}
