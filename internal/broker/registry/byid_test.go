package registry

import (
	"fmt"
	"hash/maphash"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
)

func sessionsByID(n int) *byID {
	m := &byID{seed: maphash.MakeSeed()}
	for i := range n {
		m.put(&session.Session{ID: fmt.Sprint("client-", i)})
	}
	return m
}

func TestSessionsAreFoundByTheirID(t *testing.T) {
	t.Parallel()
	const n = 10_000
	m := sessionsByID(n)
	again := &session.Session{ID: "client-0"}
	m.put(again)
	if m.get("client-0") != again || m.get("other") != nil || m.len != n {
		t.Errorf("%v and %v of %d", m.get("client-0"), m.get("other"), m.len)
	}
	m.remove("other")
	listed := map[string]bool{}
	for _, part := range m.parts {
		// A lister holds the lock for one part, so none may have much more than its share.
		if share := n / len(m.parts); len(part) > 5*share {
			t.Errorf("a part has %d sessions of %d", len(part), n)
		}
		for id := range part {
			listed[id] = true
		}
	}
	if len(listed) != n {
		t.Errorf("%d sessions in the parts, want %d", len(listed), n)
	}
	for id := range listed {
		m.remove(id)
	}
	if m.len != 0 || m.get("client-0") != nil {
		t.Errorf("%d sessions are left", m.len)
	}
}

// How long a CONNECT may wait for a goroutine that lists 200,000 sessions: ns/part. In one
// map it would be ns/op.
func BenchmarkList(b *testing.B) {
	r := &Registry{sessions: *sessionsByID(200_000)}
	b.ReportAllocs()
	for b.Loop() {
		if got := len(r.All()); got != 200_000 {
			b.Fatal(got)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(r.sessions.parts)), "ns/part")
}
