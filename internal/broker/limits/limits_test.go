package limits

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

func TestDefaultsFillOnlyWhatIsNotSet(t *testing.T) {
	t.Parallel()
	l := Limits{MaxConnections: 32, MaxSessions: 6000, QueueFull: Reject}.WithDefaults()
	if l.MaxConnections != 32 || l.MaxSessions != 6000 || l.QueueFull != Reject {
		t.Errorf("what was set has changed: %+v", l)
	}
	if l.LoopbackConnections != 2 || l.MaxSessionsPerPrincipal != 3000 {
		t.Errorf("of 32 connections %d are kept for this machine, want 2; of 6,000 sessions one address may have %d, want 3,000", l.LoopbackConnections, l.MaxSessionsPerPrincipal)
	}
	if Default().QueueFull != EndSession {
		t.Errorf("by default a full queue means %s", Default().QueueFull)
	}
}

// A SUBSCRIBE may have twice as many filters as a session, so that the client gets a code
// for each of those that are too many.
func TestBoundsOfOnePacket(t *testing.T) {
	t.Parallel()
	l := Limits{MaxSubscriptions: 10, MaxUserProperties: 5}
	if got, want := l.Packet(), (mqtt.Bounds{UserProps: 5, Filters: 20}); got != want {
		t.Errorf("the bounds are %+v, want %+v", got, want)
	}
}

func TestAClientChoosesWhatAFullQueueMeans(t *testing.T) {
	t.Parallel()
	if asked, ok := AskedQueueFull(nil); asked != 0 || !ok {
		t.Errorf("without the property: %d, %v", asked, ok)
	}
	for _, policy := range []QueueFull{EndSession, Reject, DropOldest} {
		asked, ok := AskedQueueFull(mqtt.AppendUserProp(nil, QueueFullProperty, policy))
		if !ok || QueueFulls[asked] != policy {
			t.Errorf("%s is understood as %s, %v", policy, QueueFulls[asked], ok)
		}
	}
	for _, wrong := range []string{"", "Reject", "drop-newest"} {
		if _, ok := AskedQueueFull(mqtt.AppendUserProp(nil, QueueFullProperty, wrong)); ok {
			t.Errorf("%q is accepted", wrong)
		}
	}
}

// What may be adjusted is taken from the other limits, and what clients were told stays. The
// highest bounds of a queue are remembered.
func TestLimitsInForce(t *testing.T) {
	t.Parallel()
	l := Limits{MaxQueued: 5, MaxQueuedBytes: 100, MaxPacketSize: 1000}.WithDefaults()
	var f InForce
	f.Set(l)
	l.Adjust(&Limits{MaxQueued: 3, MaxQueuedBytes: 200, MaxPacketSize: 2000, QueueFull: Reject})
	f.Set(l)
	f.Found(4, 300)
	if now := f.Limits(); now.MaxQueued != 3 || now.MaxQueuedBytes != 200 || now.MaxPacketSize != 1000 || now.QueueFull != Reject {
		t.Errorf("in force are %+v", now)
	}
	if high := f.Highest(); high.MaxQueued != 5 || high.MaxQueuedBytes != 300 {
		t.Errorf("the highest are %+v", high)
	}
}
