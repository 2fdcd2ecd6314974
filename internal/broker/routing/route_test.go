package routing

import (
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/retained"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// router is a Router over sessions whose clients are away.
func router(t *testing.T, l limits.Limits) *Router {
	t.Helper()
	j, err := journal.Open(journal.Options{FS: vfs.NewMem(), Dir: "data"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	env := session.NewEnv(j, memory.NewPool(1<<30), l.WithDefaults(), slog.New(slog.DiscardHandler), func() int64 { return time.Now().UnixMilli() })
	kept := retained.New(retained.Options{Journal: j, Memory: env.Memory, Now: env.Now, Bounds: retained.Bounds{Messages: 1, Bytes: 1 << 20}})
	rt := New(env, kept, func() []*session.Session { return nil }, nil)
	rt.FitQueues()
	return rt
}

// away makes a session that outlives its connection, with subscriptions.
func away(rt *Router, id string, filters ...string) *session.Session {
	s := session.New(rt.Env, id, "")
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Expiry = 3600
	for _, filter := range filters {
		sub := &session.Subscription{Session: s, Filter: filter, QoS: 1}
		s.Subscribe(sub)
		group, rest := topic.GroupOf(filter)
		rt.Insert(sub, group, rest)
	}
	return s
}

func publish(rt *Router, o message.Outgoing) (matched int, with message.PublishRows) {
	rt.Do(func(t *session.Turn) {
		matched, _, _ = rt.Publish(t, &o, &with)
		o.Done()
	})
	return matched, with
}

func queued(s *session.Session) int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.Routed.Messages
}

// Each session gets a message once, however many of its subscriptions match
// [MQTT-3.3.4-2].
func TestEachSessionGetsAMessageOnce(t *testing.T) {
	t.Parallel()
	rt := router(t, limits.Limits{})
	both, other := away(rt, "both", "a/+", "a/#"), away(rt, "other", "b")
	if matched, _ := publish(rt, message.Outgoing{Topic: []byte("a/1"), Payload: []byte("x"), QoS: 1}); matched != 2 {
		t.Errorf("%d subscriptions match, want 2", matched)
	}
	if queued(both) != 1 || queued(other) != 0 {
		t.Errorf("%d and %d messages wait, want 1 and 0", queued(both), queued(other))
	}
}

// A subscription that has been removed matches no more; that of another session does.
func TestARemovedSubscriptionMatchesNoMore(t *testing.T) {
	t.Parallel()
	rt := router(t, limits.Limits{})
	leaves, stays := away(rt, "leaves", "a"), away(rt, "stays", "a")
	rt.Do(func(t *session.Turn) { rt.Remove(t, leaves.Subs["a"]) })
	publish(rt, message.Outgoing{Topic: []byte("a"), Payload: []byte("x"), QoS: 1})
	if queued(leaves) != 0 || queued(stays) != 1 {
		t.Errorf("%d and %d messages wait, want 0 and 1", queued(leaves), queued(stays))
	}
}

// A message that finds no room as a retained one goes to its subscribers all the same.
func TestAMessageThatIsNotRetainedIsDelivered(t *testing.T) {
	t.Parallel()
	rt := router(t, limits.Limits{})
	s := away(rt, "s", "#")
	for i, topic := range []string{"first", "second"} {
		_, with := publish(rt, message.Outgoing{Topic: []byte(topic), Payload: []byte("x"), QoS: 1, Retain: true, Publisher: "p"})
		if with.Unretained != (i == 1) { // there is room for one
			t.Errorf("the %s message is not retained: %v", topic, with.Unretained)
		}
	}
	if queued(s) != 2 {
		t.Errorf("%d messages wait, want 2", queued(s))
	}
}

// The level of the fair share lets small weights grow and cuts the large ones.
func TestFairShareIsWhatLargeOnesAreCutTo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		weights []int64
		room    int64
		want    int64
	}{
		{nil, 100, math.MaxInt64},
		{[]int64{10, 20}, 100, math.MaxInt64},
		{[]int64{10, 200}, 100, 90},
		{[]int64{60, 5, 70}, 100, 47},
		{[]int64{50, 50, 50, 50}, 100, 25},
	} {
		if got := LevelOf(c.weights, c.room); got != c.want {
			t.Errorf("weights %v in %d: level %d, want %d", c.weights, c.room, got, c.want)
		}
	}
}
