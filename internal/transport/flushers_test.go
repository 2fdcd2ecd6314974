package transport

import (
	"io"
	"net"
	"slices"
	"testing"
)

// crowdOf is n connections with a byte of output each, which tell when it has
// been written, and their clients.
func crowdOf(t *testing.T, n int, f *Flushers, written func(i int)) (all []*Conn, clients []net.Conn) {
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

// A crowd is served in the order in which it came, and everybody else has a turn
// after each portion; not after the last, when there is nobody to hold up.
func TestCrowdGivesWayAfterEachPortion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		queued, portion int
		want            []string
	}{
		{1, 2, []string{"0"}},
		{2, 2, []string{"0", "1"}},
		{3, 2, []string{"0", "1", "give way", "2"}},
		{5, 2, []string{"0", "1", "give way", "2", "3", "give way", "4"}},
		{3, 1, []string{"0", "give way", "1", "give way", "2"}},
	} {
		f := idleFlushers()
		var got []string
		all, _ := crowdOf(t, test.queued, f, func(i int) { got = append(got, string(rune('0'+i))) })
		for _, c := range all {
			c.FlushInCrowd()
			c.FlushInCrowd() // is there already
		}
		f.crowd.close() // what is queued is served nevertheless
		f.crowd.serve(test.portion, func() { got = append(got, "give way") })
		if !slices.Equal(got, test.want) {
			t.Errorf("%d queued, portions of %d: %q, not %q", test.queued, test.portion, got, test.want)
		}
		for i, c := range all {
			if p := &c.places[1]; p.taken.Load() || p.next != nil {
				t.Errorf("%d queued: connection %d has kept its place", test.queued, i)
			}
		}
	}
}

// What is appended while a connection is flushed queues it again: at the end, not
// in the portion that is being served.
func TestCrowdTakesBackWhoHasMore(t *testing.T) {
	t.Parallel()
	f := idleFlushers()
	var got []int
	var all []*Conn
	all, _ = crowdOf(t, 3, f, func(i int) {
		if got = append(got, i); len(got) == 1 {
			all[i].Lock()
			all[i].Append([]byte("z"))
			all[i].Unlock()
			all[i].WantDrained()
			all[i].FlushInCrowd()
		}
		if len(got) == 3 {
			f.crowd.close()
		}
	})
	for _, c := range all {
		c.FlushInCrowd()
	}
	f.crowd.serve(2, func() {})
	// Its writer takes what has come before it resigns, so nothing is left for
	// the second time.
	if want := []int{0, 0, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}

// The crowd is stuck, and one of it wants an answer to something else.
func TestFlushSoonNeedsNotWaitForTheCrowd(t *testing.T) {
	t.Parallel()
	f := NewFlushers(1)
	release := make(chan struct{})
	all, clients := crowdOf(t, 3, f, func(i int) {
		if i == 0 {
			<-release
		}
	})
	for _, c := range all {
		c.FlushInCrowd()
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
