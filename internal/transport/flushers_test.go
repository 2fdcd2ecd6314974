package transport

import (
	"io"
	"net"
	"slices"
	"testing"
)

// connsWithOutput makes n connections with a byte of output each, and their clients.
// written is called when the byte of connection i has been written.
func connsWithOutput(t *testing.T, n int, f *Flushers, written func(i int)) (all []*Conn, clients []net.Conn) {
	for i := range n {
		nc, client := tcpPair(t)
		c := newConn(t, nc, f, Options{Drained: func() { written(i) }})
		c.Lock()
		c.Append([]byte("z"))
		c.Unlock()
		c.WantDrained()
		all, clients = append(all, c), append(clients, client)
	}
	return all, clients
}

// The queues are served in order, and a flusher yields after each portion but the last. Those
// of soon take one connection at a time, so that several of them share a few connections.
func TestFlushersYieldAfterEachPortion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		queued, most, portion int
		want                  []string
	}{
		{1, 2, 2, []string{"0"}},
		{2, 2, 2, []string{"0", "1"}},
		{3, 2, 2, []string{"0", "1", "yield", "2"}},
		{5, 2, 2, []string{"0", "1", "yield", "2", "3", "yield", "4"}},
		{3, 1, 1, []string{"0", "yield", "1", "yield", "2"}},
		{2, 1, 2, []string{"0", "1"}},
		{5, 1, 2, []string{"0", "1", "yield", "2", "3", "yield", "4"}},
	} {
		f := newFlushQueues()
		var got []string
		all, _ := connsWithOutput(t, test.queued, f, func(i int) { got = append(got, string(rune('0'+i))) })
		for _, c := range all {
			c.FlushBulk()
			c.FlushBulk() // is there already
		}
		f.bulk.close() // what is queued is served nevertheless
		f.bulk.serve(test.most, test.portion, func() { got = append(got, "yield") })
		if !slices.Equal(got, test.want) {
			t.Errorf("%d queued, portions of %d, %d at a time: %q, not %q", test.queued, test.portion, test.most, got, test.want)
		}
		for i, c := range all {
			if p := &c.places[1]; p.taken.Load() || p.next != nil {
				t.Errorf("%d queued: connection %d has kept its place", test.queued, i)
			}
		}
	}
}

// Output that is appended while a connection is flushed queues the connection again, at
// the end.
func TestBulkQueuesAConnectionAgainThatGotMoreOutput(t *testing.T) {
	t.Parallel()
	f := newFlushQueues()
	var got []int
	var all []*Conn
	all, _ = connsWithOutput(t, 3, f, func(i int) {
		if got = append(got, i); len(got) == 1 {
			all[i].Lock()
			all[i].Append([]byte("z"))
			all[i].Unlock()
			all[i].WantDrained()
			all[i].FlushBulk()
		}
		if len(got) == 3 {
			f.bulk.close()
		}
	})
	for _, c := range all {
		c.FlushBulk()
	}
	f.bulk.serve(2, 2, func() {})
	// Its writer takes what has come before it resigns, so nothing is left for
	// the second time.
	if want := []int{0, 0, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}

// The bulk queue stands still, and a connection in it has a reply to send.
func TestFlushSoonDoesNotWaitForBulk(t *testing.T) {
	t.Parallel()
	f := NewFlushers(1, NewGate())
	release := make(chan struct{})
	all, clients := connsWithOutput(t, 3, f, func(i int) {
		if i == 0 {
			<-release
		}
	})
	for _, c := range all {
		c.FlushBulk()
	}
	all[2].FlushSoon()
	if _, err := io.ReadFull(clients[2], make([]byte, 1)); err != nil {
		t.Error(err)
	}
	close(release)
	f.Close()
	if n := all[1].Size(); n != 0 {
		t.Errorf("%d bytes have not left", n)
	}
}
