package policy

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

// large is a policy in which a client is allowed n topics and n patterns of keys, more
// than are compared without the cache.
func large(n int) string {
	var b strings.Builder
	b.WriteString("rules:\n- brokerResources:\n  - method: Connect\n  - method: Publish\n    topics:\n")
	for i := range n {
		fmt.Fprintf(&b, "    - t%d/+/{principal.clientId}\n", i)
	}
	b.WriteString("  stateStoreResources:\n  - method: Read\n    keyType: Pattern\n    keys:\n")
	for i := range n {
		fmt.Fprintf(&b, "    - k%d-*[0-9]\n", i)
	}
	return b.String()
}

// A decision that was cached counts for its client, its action, its name and its policy.
func TestCachedDecisions(t *testing.T) {
	t.Parallel()
	g := guardOf(t, large(20))
	a, b := client("a"), client("b")
	for range 3 {
		for i := range 100 { // more than an identity has slots
			wantAllowed(t, g, a, fmt.Sprintf("+publish t7/%d/a", i), fmt.Sprintf("-publish t7/%d/b", i), fmt.Sprintf("+read k19-%d", i), fmt.Sprintf("-write k19-%d", i))
			wantAllowed(t, g, b, fmt.Sprintf("-publish t7/%d/a", i), fmt.Sprintf("+publish t7/%d/b", i))
		}
	}
	g.Use(parse(t, large(7)))
	wantAllowed(t, g, a, "-publish t7/1/a", "-read k19-1", "+publish t6/1/a", "+read k6-1")
	wantAllowed(t, g, a, "+publish t6/"+strings.Repeat("x", 2*maxCachedName)+"/a")
}

// With the policy exchanged again and again, every answer is that of one of the two, and
// after Use that of the new one.
func TestUseWhileClientsAsk(t *testing.T) {
	t.Parallel()
	both := [2]*Policy{parse(t, large(10)), parse(t, large(20))}
	g := NewGuard(both[0])
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			id := client(fmt.Sprint(i % 2)) // two of them share an identity's name, not the identity
			for {
				select {
				case <-stop:
					return
				default:
				}
				if !g.MayRead(id, []byte("k5-1")) || g.MayRead(id, []byte("k20-1")) {
					t.Error("a key that both policies agree on was judged otherwise")
					return
				}
				g.MayRead(id, []byte("k15-1"))
			}
		})
	}
	id := client("x")
	for i := range 500 {
		g.Use(both[i%2])
		if got := g.MayRead(id, []byte("k15-1")); got != (i%2 == 1) {
			t.Errorf("after Use of policy %d: got %v", i%2, got)
			break
		}
	}
	close(stop)
	readers.Wait()
}

// The version of grants tells each policy, and each identity, from the others.
func TestVersionsOfGrants(t *testing.T) {
	t.Parallel()
	both := [2]*Policy{parse(t, large(1)), parse(t, large(2))}
	g := NewGuard(both[0])
	seen := map[uint64]bool{0: true}
	for i := range 10 {
		for _, id := range []*access.Identity{client("a"), client("a")} {
			version := g.Grants(id).Version
			if again := g.Grants(id).Version; again != version {
				t.Fatalf("the version went from %d to %d without another policy", version, again)
			}
			if seen[version] {
				t.Fatalf("two identities have the version %d, or one has 0", version)
			}
			seen[version] = true
		}
		g.Use(both[(i+1)%2])
	}
}

// What GET asks for takes no allocation, with few patterns and with many. The seed of the
// cache decides which names share a pair of slots: the two that are asked for here never
// displace each other, by whatever seed.
func TestChecksDoNotAllocate(t *testing.T) {
	for _, n := range append([]int{1}, slices.Repeat([]int{50}, 100)...) {
		g := guardOf(t, large(n))
		id := client("a")
		topic, key := []byte("t0/x/a"), []byte("k0-1")
		if !g.MayPublish(id, topic) || !g.MayRead(id, key) {
			t.Fatal("not allowed")
		}
		if allocs := testing.AllocsPerRun(100, func() {
			g.MayPublish(id, topic)
			g.MaySubscribe(id, topic)
			g.MayRead(id, key)
		}); allocs != 0 {
			t.Errorf("%d patterns: %v allocations", n, allocs)
		}
	}
}

// The checks of a GET: may the client publish the request, subscribe to its Response
// Topic, and read the key.
func BenchmarkChecksOfAGet(b *testing.B) {
	const request = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
	for _, c := range []struct{ name, keys string }{
		{"prefix", `"dev:{principal.clientId}:*"`},
		{"50-patterns", strings.TrimSuffix(patterns(50), ", ") + `, "dev:{principal.clientId}:*"`},
	} {
		b.Run(c.name, func(b *testing.B) {
			g := guardOf(b, `
rules:
- brokerResources:
  - method: Connect
  - {method: Publish, topics: ["`+request+`"]}
  - {method: Subscribe, topics: ["clients/{principal.clientId}/#"]}
  stateStoreResources:
  - {method: ReadWrite, keyType: Pattern, keys: [`+c.keys+`]}
`)
			id := &access.Identity{ClientID: "press-17"}
			topic, response, key := []byte(request), []byte("clients/press-17/services/statestore/_any_/command/invoke/response"), []byte("dev:press-17:state/0123456789")
			b.ReportAllocs()
			for b.Loop() {
				if !g.MayPublish(id, topic) || !g.MaySubscribe(id, response) || !g.MayRead(id, key) {
					b.Fatal("not allowed")
				}
			}
		})
	}
}

func patterns(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"other%d[0-9]*", `, i)
	}
	return b.String()
}

// A client may have more topics than are compared one by one.
func TestManyTopicsWithoutWildcards(t *testing.T) {
	t.Parallel()
	for n := range 2*manyTopics + 1 {
		var topics []string
		for i := range n {
			topics = append(topics, fmt.Sprintf("t/%d", i))
		}
		g := guardOf(t, "rules: [{brokerResources: [{method: Connect}, {method: Publish, topics: ["+strings.Join(append(topics, "last"), ", ")+"]}]}]")
		for i := range n {
			wantAllowed(t, g, client("a"), fmt.Sprintf("+publish t/%d", i))
		}
		wantAllowed(t, g, client("a"), "+publish last", fmt.Sprintf("-publish t/%d", n))
	}
}
