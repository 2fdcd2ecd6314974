package hosts_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/internal/broker/hosts"
)

type client struct {
	place hosts.Place[*client]
	host  string
}

// The oldest makes room first, and one that was looked at comes after all others.
func TestNextGivesTheLongestAway(t *testing.T) {
	t.Parallel()
	hs := hosts.New[*client]()
	var all [4]client
	for i := range all {
		hs.Enter(&all[i].place, "h")
		hs.Away(&all[i].place, &all[i])
	}
	hs.Back(&all[0].place)
	next := func(want *client) {
		t.Helper()
		if got, any := hs.Next("h"); !any || got != want {
			t.Fatalf("next is %p, want %p of %p", got, want, &all)
		}
	}
	next(&all[1])
	hs.Away(&all[0].place, &all[0])
	next(&all[2])
	hs.Leave(&all[2].place)
	next(&all[3])
	next(&all[1])
	next(&all[0])
	if _, any := hs.Next("other"); any {
		t.Error("an address without sessions has one that is away")
	}
}

// Whatever sessions do, the counts are right, and each that is away is given once
// before any is given again.
func TestHostsFollowTheirSessions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		hs := hosts.New[*client]()
		clients := make([]client, 12)
		away := map[*client]bool{}
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			c := &clients[rapid.IntRange(0, len(clients)-1).Draw(t, "client")]
			if c.host == "" {
				c.host = name.Draw(t, "host")
				hs.Enter(&c.place, c.host)
				continue
			}
			switch rapid.SampledFrom([]string{"leave", "move", "away", "back"}).Draw(t, "step") {
			case "leave":
				hs.Leave(&c.place)
				c.host = ""
				delete(away, c)
			case "move":
				c.host = name.Draw(t, "host")
				hs.Move(&c.place, c.host)
			case "away":
				hs.Away(&c.place, c)
				away[c] = true
			case "back":
				hs.Back(&c.place)
				delete(away, c)
			}
		}
		count, waiting := map[string]int{}, map[string]int{}
		for i := range clients {
			if c := &clients[i]; c.host != "" {
				count[c.host]++
				if away[c] {
					waiting[c.host]++
				}
			}
		}
		for _, host := range []string{"a", "b", "c"} {
			if got := hs.Sessions(host); got != count[host] {
				t.Fatalf("%s has %d sessions, want %d", host, got, count[host])
			}
			if got := hs.Sessions(hs.Most()); got < count[host] {
				t.Fatalf("the address with most has %d, %s has %d", got, host, count[host])
			}
			seen := map[*client]bool{}
			for range waiting[host] {
				c, any := hs.Next(host)
				if !any || c.host != host || !away[c] || seen[c] {
					t.Fatalf("%s gives %p (any: %v) after %d of %d that are away", host, c, any, len(seen), waiting[host])
				}
				seen[c] = true
			}
			if c, any := hs.Next(host); any && !seen[c] {
				t.Fatalf("%s gives a session that is not away", host)
			}
		}
	})
}

// What it takes to find the session that makes room does not depend on how many there are.
func BenchmarkNext(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("sessions=%d", n), func(b *testing.B) {
			hs := hosts.New[*client]()
			clients := make([]client, n)
			for i := range clients {
				hs.Enter(&clients[i].place, fmt.Sprint(i%(n/10)))
				hs.Away(&clients[i].place, &clients[i])
			}
			b.ReportAllocs()
			for b.Loop() {
				host := hs.Most()
				c, _ := hs.Next(host)
				hs.Leave(&c.place)
				hs.Enter(&c.place, host)
				hs.Away(&c.place, c)
			}
		})
	}
}
