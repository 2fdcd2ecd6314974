package share

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/transport"
)

func newEnv(t *testing.T) *session.Env {
	t.Helper()
	j, err := journal.Open(journal.Options{FS: vfs.NewMem(), Dir: "data"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	l := limits.Limits{MaxQueuedBytes: 1 << 20, MaxTotalQueuedBytes: 1 << 22}
	return session.NewEnv(j, memory.NewPool(1<<30), l.WithDefaults(), slog.New(slog.DiscardHandler), func() int64 { return time.Now().UnixMilli() })
}

// join makes a member whose session outlives its connection; its client is away.
func join(env *session.Env, g *Group, id string) *session.Subscription {
	s := session.New(env, id, "")
	s.Expiry = 3600
	sub := &session.Subscription{Session: s, Filter: "$share/" + g.Key, QoS: 1}
	s.Subscribe(sub)
	g.Join(sub)
	return sub
}

// connect gives the member a client, which takes everything and acknowledges nothing.
func connect(t *testing.T, env *session.Env, s *session.Session) {
	ours, theirs := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	p := &peer.Peer{Env: &peer.Env{Memory: env.Memory, Accounts: env.Accounts, Stats: &env.Counters, Log: env.Log}, Transport: transport.NewConn(ours, nil, transport.Options{}), ReceiveMax: 100, Protocol: mqtt.V5}
	t.Cleanup(func() { p.Transport.Close() })
	env.Do(func(turn *session.Turn) {
		s.Mu.Lock()
		defer s.Mu.Unlock()
		s.Resume(turn, p)
	})
}

func deliver(env *session.Env, g *Group, payload string) {
	env.Do(func(t *session.Turn) {
		o := message.Outgoing{Topic: []byte("jobs"), Payload: []byte(payload), QoS: 1}
		g.Deliver(t, &o)
		o.Done()
		env.Commit(t, nil)
	})
}

func inflight(s *session.Session) int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return int(s.Inflight)
}

// Connected members get messages in turn, and one whose client is away gets none.
func TestConnectedMembersTakeTurns(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	g := New(env, "g/jobs", "jobs")
	first, second, away := join(env, g, "first"), join(env, g, "second"), join(env, g, "away")
	connect(t, env, first.Session)
	connect(t, env, second.Session)
	for i := range 60 {
		deliver(env, g, fmt.Sprint(i))
	}
	one, two, none := inflight(first.Session), inflight(second.Session), inflight(away.Session)
	if one+two != 60 || min(one, two) < 20 || none != 0 {
		t.Errorf("the connected members got %d and %d messages, the other %d", one, two, none)
	}
}

// drain takes the messages out of the backlog, in their order.
func drain(env *session.Env, g *Group) (payloads []string) {
	env.Do(func(t *session.Turn) {
		for {
			seq, m := g.First()
			if m == nil {
				break
			}
			payloads = append(payloads, string(m.Payload()))
			m.Release()
			g.Pop(t, seq)
		}
		env.Commit(t, nil)
	})
	return payloads
}

// What no member takes waits in the order of coming; what is handed back goes first.
func TestTheBacklogKeepsTheOrder(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	g := New(env, "g/jobs", "jobs")
	join(env, g, "away")
	for _, payload := range []string{"2", "3"} {
		deliver(env, g, payload)
	}
	env.Do(func(t *session.Turn) {
		var back []*message.Message
		for _, payload := range []string{"0", "1"} {
			o := message.Outgoing{Topic: []byte("jobs"), Payload: []byte(payload), QoS: 1}
			back = append(back, t.MessageOf(&o))
			o.Done()
		}
		g.Requeue(t, back...)
		env.Commit(t, nil)
	})
	if got := drain(env, g); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
		t.Errorf("the backlog has %v", got)
	}
	if env.Counters.Queued.Load() != 0 || env.Counters.QueuedBytes.Load() != 0 {
		t.Errorf("%d messages and %d bytes count as queued at the end", env.Counters.Queued.Load(), env.Counters.QueuedBytes.Load())
	}
}

// A member that comes takes what waits.
func TestAMemberThatComesTakesTheBacklog(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	g := New(env, "g/jobs", "jobs")
	member := join(env, g, "member")
	for i := range 5 {
		deliver(env, g, fmt.Sprint(i))
	}
	connect(t, env, member.Session)
	env.Do(g.Dispatch)
	if got := inflight(member.Session); got != 5 || g.Messages != 0 {
		t.Errorf("the member got %d of 5 messages, %d are left", got, g.Messages)
	}
}

// A member that never acknowledges keeps what was sent to it and what may wait for it, and
// no more: the rest stays in the backlog, and goes to a member that comes.
func TestAMemberThatNeverAcknowledgesKeepsItsPartOnly(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		size     int // of each message
		messages int
		most     int // that the member may have
	}{
		{"at the bound of messages", 10, 100 + 128, 100 + 128}, // Receive Maximum, and those that wait
		{"one more", 10, 100 + 128 + 1, 100 + 128},
		{"many more", 10, 400, 100 + 128},
		{"at the bound of bytes", 1 << 20, 16, 16},
		{"one more than the bytes", 1 << 20, 17, 16},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			env := newEnv(t)
			env.Set(limits.Limits{MaxQueuedBytes: 1 << 30, MaxTotalQueuedBytes: 1 << 30}.WithDefaults())
			g := New(env, "g/jobs", "jobs")
			stuck, other := join(env, g, "stuck"), join(env, g, "other")
			connect(t, env, stuck.Session)
			payload := strings.Repeat("x", test.size)
			for range test.messages {
				deliver(env, g, payload)
			}
			has := func(s *session.Session) int {
				s.Mu.Lock()
				defer s.Mu.Unlock()
				return s.Routed.Messages
			}
			if got := has(stuck.Session); got != test.most || g.Messages != test.messages-test.most {
				t.Errorf("the member has %d messages and %d are left, want %d and %d", got, g.Messages, test.most, test.messages-test.most)
			}
			connect(t, env, other.Session)
			env.Do(g.Dispatch)
			if got, rest := has(other.Session), test.messages-test.most; got != rest {
				t.Errorf("a member that comes has %d messages, want %d", got, rest)
			}
		})
	}
}

// Without a member that could take a message later, none is kept.
func TestAGroupWithoutMembersKeepsNothing(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	g := New(env, "g/jobs", "jobs")
	member := join(env, g, "member")
	deliver(env, g, "kept")
	if left := g.Leave(member); left != 0 || g.HasMembers() {
		t.Fatalf("%d members are left", left)
	}
	g.Discard()
	deliver(env, g, "dropped")
	if got := drain(env, g); len(got) != 0 || env.Counters.Dropped.Load() != 1 {
		t.Errorf("the backlog has %v, %d messages count as dropped", got, env.Counters.Dropped.Load())
	}
}
