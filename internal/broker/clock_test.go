package broker

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"holdfast/internal/journal"
	"holdfast/internal/mqtttest"
)

// wallClock is the machine's clock, and how far it is off.
type wallClock struct{ off atomic.Int64 }

func (w *wallClock) step(d time.Duration) { w.off.Add(d.Milliseconds()) }

func (w *wallClock) hook(_ *journal.Options, o *Options) {
	o.WallMs = func() int64 { return time.Now().UnixMilli() + w.off.Load() }
}

// awaitSessions waits until these sessions are left, and says so if others are.
func (n *node) awaitSessions(ids ...string) {
	n.t.Helper()
	for deadline := time.Now().Add(mqtttest.Deadline); n.broker.Levels().Sessions > len(ids); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("there are %d sessions, want %q", n.broker.Levels().Sessions, ids)
		}
	}
	for _, id := range ids {
		if n.broker.lookup(id) == nil {
			n.t.Errorf("the session of %q has ended", id)
		}
	}
}

// A session whose time ran out while the server was down ends as soon as a clock that
// was behind at the start is set right, and its will is published then; sessions that
// began to wait in this run don't end early, nor after a restart.
func TestSessionsAwayFollowTheWallClockForward(t *testing.T) {
	t.Parallel()
	fs, clock := vfs.NewMem(), &wallClock{}
	n := run(t, fs, Limits{}, clock.hook)
	n.connect(mqtttest.ClientID("short"), mqtttest.SessionExpiry(600), mqtttest.Will(mqtttest.Message{Topic: "will", Payload: "short has gone"}, 300)).Drop()
	n.connect(mqtttest.ClientID("long"), mqtttest.SessionExpiry(86400)).Disconnect()
	for _, id := range []string{"short", "long"} {
		for s := n.broker.lookup(id); s.connected(); {
			time.Sleep(time.Millisecond)
		}
	}
	n.stop()

	clock.step(20*time.Minute - time.Hour) // 20 minutes go by, and the clock starts an hour behind
	n = run(t, fs, Limits{}, clock.hook)
	watcher := n.connect()
	watcher.Subscribe("will", 0)
	n.connect(mqtttest.ClientID("new"), mqtttest.SessionExpiry(600)).Disconnect()
	clock.step(time.Hour)
	if got := watcher.Receive(); string(got.Payload) != "short has gone" {
		t.Errorf("got %v", got)
	}
	watcher.Disconnect()
	n.awaitSessions("long", "new")
	clock.step(-30 * 24 * time.Hour) // which makes none of them live longer
	for _, s := range []*Session{n.broker.lookup("long"), n.broker.lookup("new")} {
		s.mu.Lock()
		n.broker.scheduleExpiry(s)
		if left := s.expireAt.due - n.broker.Now(); left > int64(s.expiry)*1000 {
			t.Errorf("%s has %d ms left, its interval is %d s", s.id, left, s.expiry)
		}
		s.mu.Unlock()
	}
	clock.step(30 * 24 * time.Hour)
	n.stop()

	n = run(t, fs, Limits{}, clock.hook)
	n.connect().Disconnect() // it serves
	n.awaitSessions("long", "new")
}

func (s *Session) connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil
}

// The expiry of a message does not move when the wall clock is stepped while the broker
// runs, whether the message is in memory or is written and read again.
func TestMessagesKeepTheirExpiryThroughSteps(t *testing.T) {
	t.Parallel()
	clock := &wallClock{}
	n := run(t, vfs.NewMem(), Limits{}, clock.hook)
	n.connect() // it serves
	m := newMessage(1)
	defer m.release()
	m.buf = append(m.buf, 't')
	m.topicEnd, m.propsEnd, m.expiresAt = 1, 1, 60_000
	row := appendMessage(nil, m, n.broker.wall())
	for _, step := range []time.Duration{time.Hour, -2 * time.Hour} {
		clock.step(step)
		again, err := decodeMessage(row, n.broker.wall())
		if err != nil || again.expiresAt != 60_000 {
			t.Errorf("after a step by %v it expires at %d ms, %v", step, again.expiresAt, err)
		}
		again.release()
	}
}
