package principals_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/internal/broker/principals"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

type client struct {
	place principals.SessionPlace
	name  string
	subs  int
}

// The oldest makes room first, and one that was looked at comes after all others.
func TestNextGivesTheLongestAway(t *testing.T) {
	t.Parallel()
	ps := principals.New(principals.Options{})
	var all [4]client
	for i := range all {
		ps.Enter(&all[i].place, "p", 0)
		ps.Away(&all[i].place, &all[i])
	}
	ps.Back(&all[0].place)
	next := func(want *client) {
		t.Helper()
		if got := ps.Next("p"); got != want {
			t.Fatalf("next is %p, want %p of %p", got, want, &all)
		}
	}
	next(&all[1])
	ps.Away(&all[0].place, &all[0])
	next(&all[2])
	ps.Leave(&all[2].place)
	next(&all[3])
	next(&all[1])
	next(&all[0])
	if ps.Next("other") != nil {
		t.Error("a principal without sessions has one that is away")
	}
}

// Whatever sessions do, the counts are right, and each that is away is given once
// before any is given again.
func TestPrincipalsFollowTheirSessions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pool := memory.NewPool(1 << 30)
		ps := principals.New(principals.Options{Memory: pool})
		clients := make([]client, 12)
		away := map[*client]bool{}
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		const bound = 5 // of each principal's subscriptions
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			c := &clients[rapid.IntRange(0, len(clients)-1).Draw(t, "client")]
			if c.name == "" {
				c.name = name.Draw(t, "name")
				ps.Enter(&c.place, c.name, 0)
				continue
			}
			switch rapid.SampledFrom([]string{"leave", "move", "away", "back", "subscribe", "unsubscribe"}).Draw(t, "step") {
			case "leave":
				c.place.ReturnSubscriptions(c.subs)
				ps.Leave(&c.place)
				c.name, c.subs = "", 0
				delete(away, c)
			case "move":
				c.name = name.Draw(t, "name")
				ps.Move(&c.place, c.name, c.subs)
			case "away":
				ps.Away(&c.place, c)
				away[c] = true
			case "back":
				ps.Back(&c.place)
				delete(away, c)
			case "subscribe":
				has := 0
				for i := range clients {
					if clients[i].name == c.name {
						has += clients[i].subs
					}
				}
				taken := c.place.TakeSubscription(bound)
				if taken != (has < bound) {
					t.Fatalf("%s took one more than %d subscriptions of %d: %v", c.name, has, bound, taken)
				}
				if taken {
					c.subs++
				}
			case "unsubscribe":
				if c.subs > 0 {
					c.subs--
					c.place.ReturnSubscriptions(1)
				}
			}
		}
		count, waiting := map[string]int{}, map[string]int{}
		for i := range clients {
			if c := &clients[i]; c.name != "" {
				count[c.name]++
				if away[c] {
					waiting[c.name]++
				}
			}
		}
		if got := ps.Figures().Principals; got != len(count) {
			t.Fatalf("there are %d records, want %d", got, len(count))
		}
		for _, name := range []string{"a", "b", "c"} {
			if got := ps.Sessions(name); got != count[name] {
				t.Fatalf("%s has %d sessions, want %d", name, got, count[name])
			}
			if got := ps.Sessions(ps.MostSessions()); got < count[name] {
				t.Fatalf("the principal with most has %d, %s has %d", got, name, count[name])
			}
			seen := map[*client]bool{}
			for range waiting[name] {
				c, _ := ps.Next(name).(*client)
				if c == nil || c.name != name || !away[c] || seen[c] {
					t.Fatalf("%s gives %p after %d of %d that are away", name, c, len(seen), waiting[name])
				}
				seen[c] = true
			}
			if c, any := ps.Next(name).(*client); any && !seen[c] {
				t.Fatalf("%s gives a session that is not away", name)
			}
		}
		for i := range clients {
			if c := &clients[i]; c.name != "" {
				c.place.ReturnSubscriptions(c.subs)
				ps.Leave(&c.place)
			}
		}
		if used := pool.Used(); used != 0 || ps.Figures().Principals != 0 {
			t.Fatalf("without sessions %d bytes are charged, for %d records", used, ps.Figures().Principals)
		}
	})
}

// What it takes to find the session that makes room does not depend on how many there are.
func BenchmarkNext(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("sessions=%d", n), func(b *testing.B) {
			ps := principals.New(principals.Options{})
			clients := make([]client, n)
			for i := range clients {
				ps.Enter(&clients[i].place, fmt.Sprint(i%(n/10)), 0)
				ps.Away(&clients[i].place, &clients[i])
			}
			b.ReportAllocs()
			for b.Loop() {
				name := ps.MostSessions()
				c := ps.Next(name).(*client)
				ps.Leave(&c.place)
				ps.Enter(&c.place, name, 0)
				ps.Away(&c.place, c)
			}
		})
	}
}
