package share

import (
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
)

// send delivers one message of a publisher's to a topic.
func send(env *session.Env, g *Group, publisher, topic string) {
	env.Do(func(t *session.Turn) {
		o := message.Outgoing{Topic: []byte(topic), Payload: []byte("x"), QoS: 1, Publisher: publisher}
		g.Deliver(t, &o)
		o.Done()
		env.Commit(t, nil)
	})
}

// leave ends the connection of a member, whose session stays.
func leave(env *session.Env, g *Group, m *session.Subscription) {
	env.Do(func(t *session.Turn) {
		m.Session.Mu.Lock()
		m.Session.Peer = nil
		m.Session.Mu.Unlock()
		g.TakeBack(t, m)
	})
}

// newGroup is a group with a strategy and three members, whose clients are connected.
func newGroup(t *testing.T, strategy limits.Strategy) (env *session.Env, g *Group, members []*session.Subscription) {
	t.Helper()
	env = newEnv(t)
	l := *env.Limits()
	l.SharedStrategies = map[string]limits.Strategy{"g": strategy}
	env.Set(l)
	g = New(env, "g/#", "#")
	for i := range 3 {
		m := join(env, g, fmt.Sprint("member", i))
		connect(t, env, m.Session)
		members = append(members, m)
	}
	return env, g, members
}

func counts(members []*session.Subscription) (n [3]int) {
	for i, m := range members {
		m.Session.Mu.Lock()
		n[i] = m.Session.Routed.Messages
		m.Session.Mu.Unlock()
	}
	return n
}

// A group has the strategy of its name, whatever its filter is, or else that of all groups.
func TestStrategyOfAGroup(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	l := *env.Limits()
	l.SharedStrategy, l.SharedStrategies = limits.HashTopic, map[string]limits.Strategy{"a": limits.Sticky}
	env.Set(l)
	for key, want := range map[string]limits.Strategy{"a/x/y": limits.Sticky, "a//": limits.Sticky, "b/a": limits.HashTopic} {
		if g := New(env, key, "x"); g.strategy != want {
			t.Errorf("the group %s has the strategy %s, want %s", key, g.strategy, want)
		}
	}
}

// One member gets all messages until it goes. What it had not acknowledged goes to the member
// that follows it, and stays there when the first is back.
func TestSticky(t *testing.T) {
	t.Parallel()
	env, g, members := newGroup(t, limits.Sticky)
	for i := range 20 {
		send(env, g, fmt.Sprint(i), fmt.Sprint(i))
	}
	if got := counts(members); got != [3]int{20, 0, 0} {
		t.Errorf("%v", got)
	}
	leave(env, g, members[0])
	send(env, g, "c", "t")
	if got := counts(members); got != [3]int{0, 21, 0} {
		t.Errorf("after the first has gone: %v", got)
	}
	connect(t, env, members[0].Session)
	send(env, g, "c", "t")
	if got := counts(members); got != [3]int{0, 22, 0} {
		t.Errorf("with the first again: %v", got)
	}
}

// full is how many messages a member has that acknowledges none: its Receive Maximum, and those
// that may wait.
const full = 100 + 128

// What the member that was chosen has no room for waits for it, although others have room; when
// it goes it gets to another one, and nothing is lost.
func TestMessagesWaitForTheMemberThatIsChosen(t *testing.T) {
	t.Parallel()
	for _, strategy := range []limits.Strategy{limits.Sticky, limits.HashClient, limits.HashTopic} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			env, g, members := newGroup(t, strategy)
			const sent = full + 20
			for range sent {
				send(env, g, "publisher", "topic")
			}
			at := -1
			for i, n := range counts(members) {
				switch n {
				case 0:
				case full:
					at = i
				default:
					t.Errorf("member %d has %d messages", i, n)
				}
			}
			if at < 0 || g.Messages != sent-full {
				t.Fatalf("the members have %v, %d wait", counts(members), g.Messages)
			}
			send(env, g, "other", "other")
			if g.Messages != sent-full+1 {
				t.Errorf("%d wait, want the next message behind them", g.Messages)
			}
			leave(env, g, members[at])
			total := g.Messages
			for _, n := range counts(members) {
				total += n
			}
			if got := counts(members); got[at] != 0 || total != sent+1 {
				t.Errorf("after it has gone the members have %v, %d wait, want %d in all", got, g.Messages, sent+1)
			}
		})
	}
}

// While no member is connected messages wait, and the first that connects gets them.
func TestMessagesWaitForAMember(t *testing.T) {
	t.Parallel()
	for _, strategy := range []limits.Strategy{limits.Sticky, limits.HashClient, limits.HashTopic} {
		env, g, members := newGroup(t, strategy)
		for _, m := range members {
			leave(env, g, m)
		}
		for i := range 10 {
			send(env, g, fmt.Sprint(i), fmt.Sprint(i))
		}
		if g.Messages != 10 {
			t.Errorf("%s: %d wait", strategy, g.Messages)
		}
		connect(t, env, members[1].Session)
		env.Do(g.Dispatch)
		if got := counts(members); got != [3]int{0, 10, 0} || g.Messages != 0 {
			t.Errorf("%s: the members have %v, %d wait", strategy, got, g.Messages)
		}
	}
}

// The same member gets what has the same topic, or publisher, as long as the members are the
// same; when one goes, only its messages move, and they move back when it is there again.
func TestHashes(t *testing.T) {
	t.Parallel()
	for _, strategy := range []limits.Strategy{limits.HashClient, limits.HashTopic} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			env, g, members := newGroup(t, strategy)
			choice := func(i int) *session.Subscription {
				o := message.Outgoing{Topic: fmt.Appendf(nil, "plant/%d/speed", i), Publisher: "c"}
				if strategy == limits.HashClient {
					o = message.Outgoing{Topic: []byte("t"), Publisher: fmt.Sprint("client", i)}
				}
				return g.chosen(&o)
			}
			const keys = 300
			before := map[int]*session.Subscription{}
			share := map[*session.Subscription]int{}
			for i := range keys {
				before[i] = choice(i)
				share[before[i]]++
			}
			for _, m := range members {
				if share[m] < keys/6 {
					t.Errorf("of %d keys the members have %v", keys, share)
					break
				}
			}
			leave(env, g, members[1])
			for i := range keys {
				if now := choice(i); now == members[1] || before[i] != members[1] && now != before[i] {
					t.Fatalf("key %d has moved, although its member is there", i)
				}
			}
			connect(t, env, members[1].Session)
			for i := range keys {
				if choice(i) != before[i] {
					t.Fatalf("key %d has another member than before, with the same members", i)
				}
			}
		})
	}
}

// A message whose publisher is not known has a member by its topic.
func TestHashOfAnUnknownPublisher(t *testing.T) {
	t.Parallel()
	_, g, _ := newGroup(t, limits.HashClient)
	seen := map[*session.Subscription]bool{}
	for i := range 50 {
		seen[g.chosen(&message.Outgoing{Topic: fmt.Append(nil, i)})] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d members have a part of the topics", len(seen))
	}
}
