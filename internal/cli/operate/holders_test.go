package operate

import (
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/broker"
)

// Sessions count for their owner, or for the address that their client is connected from,
// and the principal with most of them comes first.
func TestHoldersOfSessions(t *testing.T) {
	t.Parallel()
	var hs holders
	for _, s := range []broker.SessionInfo{
		{Owner: "user:olga", Connected: true, Address: "192.0.2.1:1", Subscriptions: 2, Queued: 1, QueuedBytes: 100},
		{Connected: true, Address: "[2001:db8::1]:7", Subscriptions: 1},
		{Owner: "user:olga", Queued: 3, QueuedBytes: 50},
		{Connected: true, Address: "192.0.2.1:2"},
		{},
	} {
		hs.add(&s)
	}
	got := ""
	for _, h := range hs.most() {
		got += fmt.Sprintln(*h)
	}
	const want = "{user:olga 2 1 2 4 150}\n{192.0.2.1 1 1 0 0 0}\n{2001:db8::1 1 1 1 0 0}\n{- 1 0 0 0 0}\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
