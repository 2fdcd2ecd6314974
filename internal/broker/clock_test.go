package broker

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
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
		if n.broker.Sessions.Lookup(id) == nil {
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
		for s := n.broker.Sessions.Lookup(id); connected(s); {
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
	n.stop()

	clock.step(-30 * 24 * time.Hour) // which makes none of them live longer
	n = run(t, fs, Limits{}, clock.hook)
	for _, s := range []*session.Session{n.broker.Sessions.Lookup("long"), n.broker.Sessions.Lookup("new")} {
		s.Mu.Lock()
		if left := s.ExpireAt.Due - n.broker.Now(); left > int64(s.Expiry)*1000 {
			t.Errorf("%s has %d ms left, its interval is %d s", s.ID, left, s.Expiry)
		}
		s.Mu.Unlock()
	}
	n.stop()

	clock.step(30 * 24 * time.Hour)
	n = run(t, fs, Limits{}, clock.hook)
	n.connect().Disconnect() // it serves
	n.awaitSessions("long", "new")
}

func connected(s *session.Session) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.Peer != nil
}

// The expiry of a message does not move when the wall clock is stepped while the broker
// runs, whether the message is in memory or is written and read again.
func TestMessagesKeepTheirExpiryThroughSteps(t *testing.T) {
	t.Parallel()
	clock := &wallClock{}
	n := run(t, vfs.NewMem(), Limits{}, clock.hook)
	n.connect() // it serves
	compose := message.Compose([]byte("t"), 0)
	compose.EndProperties()
	compose.ExpireAt(60_000)
	m := compose.Message()
	defer m.Release()
	row := m.AppendRow(rows.AppendPayload(nil), n.broker.Wall())
	for _, step := range []time.Duration{time.Hour, -2 * time.Hour} {
		clock.step(step)
		stored, err := rows.DecodePayload(row)
		if err != nil {
			t.Fatal(err)
		}
		again := message.FromRow(&stored, n.broker.Wall())
		if again.ExpiresAt != 60_000 {
			t.Errorf("after a step by %v it expires at %d ms", step, again.ExpiresAt)
		}
		again.Release()
	}
}

// badges stand for an authenticator: each proof of who a client is holds for an hour, by the
// wall clock.
type badges struct{ clock *wallClock }

func (b badges) badge(clientID string) access.Verdict {
	expires := time.Now().Add(time.Duration(b.clock.off.Load()) * time.Millisecond).Add(time.Hour)
	return access.Verdict{Identity: &access.Identity{ClientID: clientID, Owner: "token:" + clientID, Method: access.Token, Expires: expires}}
}

func (b badges) Connect(_ *mqtt.Connect, clientID string, _ *access.Origin, _ <-chan struct{}) access.Verdict {
	return b.badge(clientID)
}

func (b badges) Reauthenticate(id *access.Identity, _ *mqtt.Auth, _ *access.Origin, _ <-chan struct{}) access.Verdict {
	return b.badge(id.ClientID)
}

func (badges) Holds(*access.Identity) bool { return true }

// A proof ends by the wall clock, also when that is stepped: a step forward ends those
// connections whose time has passed by then, and no other; a step back ends none, gives
// what it gives by that clock, and a client that proves itself again begins anew.
func TestProofsFollowTheWallClock(t *testing.T) {
	t.Parallel()
	clock := &wallClock{}
	n := run(t, vfs.NewMem(), Limits{}, clock.hook, func(_ *journal.Options, o *Options) { o.Auth = badges{clock} })
	enter := func(id string) *mqtttest.Client {
		return n.connect(mqtttest.ClientID(id), mqtttest.Raw(func(c *mqtt.Connect) {
			c.AuthMethod, c.HasAuthMethod = []byte("JWT"), true
		}))
	}
	prove := func(c *mqtttest.Client) {
		t.Helper()
		c.Write(mqtt.AppendAuth(nil, &mqtt.Auth{Code: mqtt.Reauthenticate, AuthMethod: []byte("JWT"), HasAuthMethod: true}))
		c.Expect(mqtt.AUTH)
	}
	first, renewed := enter("first"), enter("renewed")
	clock.step(50 * time.Minute)
	second := enter("second")
	prove(renewed)
	clock.step(20 * time.Minute) // 70 since the first, 20 since the others
	first.AwaitDisconnect(mqtt.MaximumConnectTime)
	second.Ping()
	renewed.Ping()

	// Back by a day: what was proven before lasts longer, and what is proven now an hour.
	clock.step(-24 * time.Hour)
	third := enter("third")
	prove(renewed)
	clock.step(2 * time.Hour)
	third.AwaitDisconnect(mqtt.MaximumConnectTime) // a look at the connections has been made
	renewed.AwaitDisconnect(mqtt.MaximumConnectTime)
	second.Ping()
	clock.step(24 * time.Hour)
	second.AwaitDisconnect(mqtt.MaximumConnectTime)
}
