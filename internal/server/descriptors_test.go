package server

import (
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/broker"
)

// However many descriptors there are, clients leave to the rest of the process what it
// needs, and those that are counted leave room for those that aren't.
func TestDescriptorsAreDivided(t *testing.T) {
	t.Parallel()
	if _, err := divide(minDescriptors - 1); err == nil || !strings.Contains(err.Error(), "raise the limit") {
		t.Errorf("with %d: %v", minDescriptors-1, err)
	}
	if d, err := divide(0); err != nil || d.connections != 0 || d.bounds != nil {
		t.Errorf("with an unknown limit: %+v, %v", d, err)
	}
	for limit := minDescriptors; limit < 1_100_000; limit += 1 + limit/7 {
		d, err := divide(limit)
		if err != nil {
			t.Fatalf("%d: %v", limit, err)
		}
		left := limit - d.bounds.Loopback
		if d.bounds.Clients >= d.bounds.Loopback || left < min(ownDescriptors, limit/4) {
			t.Errorf("%d: sockets up to %d, on this machine up to %d, %d are left to the process", limit, d.bounds.Clients, d.bounds.Loopback, left)
		}
		if d.connections < limit/4 || d.connections+ownDescriptors/2 >= d.bounds.Clients && limit > 200 {
			t.Errorf("%d: %d connections, sockets up to %d", limit, d.connections, d.bounds.Clients)
		}
		if limit > 2000 && (left < ownDescriptors+d.tables || d.connections+ownDescriptors+d.tables+broker.SpareConnections > d.bounds.Clients) {
			t.Errorf("%d: %d connections and %d tables, sockets up to %d", limit, d.connections, d.tables, d.bounds.Clients)
		}
	}
}

// A maximum of connections that is asked for is lowered to what the limit allows.
func TestConnectionsFollowTheDescriptors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ asked, want int }{{0, 1}, {10, 10}, {1 << 30, 1}} {
		s := &Server{config: Config{Limits: broker.Limits{MaxConnections: c.asked}}, log: logger(Config{})}
		if err := s.shareDescriptors(); err != nil {
			t.Fatal(err)
		}
		if s.descriptors.limit == 0 {
			t.Skip("this system does not limit open files, so connections follow no limit")
		}
		want := c.want
		if want == 1 {
			want = s.descriptors.connections
		}
		if got := s.config.Limits.MaxConnections; got != want && (c.asked != 0 || got != 0) {
			t.Errorf("asked for %d: %d, want %d", c.asked, got, want)
		}
	}
}
