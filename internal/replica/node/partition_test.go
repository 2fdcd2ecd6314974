package node

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/lease"
)

// A network is what the nodes of a test reach each other through: one link for each pair and
// direction in which connections are made, each of which can be cut.
type network struct {
	links map[[2]string]*link // from, to
}

type link struct {
	net.Listener
	to string // address

	mu    sync.Mutex
	cut   bool                  // guarded by mu
	conns map[net.Conn]struct{} // guarded by mu
}

func newNetwork(t testing.TB, peers []Peer) *network {
	n := &network{links: map[[2]string]*link{}}
	for _, from := range peers {
		for _, to := range peers {
			if from.Name == to.Name {
				continue
			}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l := &link{Listener: listener, to: to.Address, conns: map[net.Conn]struct{}{}}
			n.links[[2]string{from.Name, to.Name}] = l
			go l.serve()
			t.Cleanup(func() { _ = l.Close(); l.set(true) })
		}
	}
	return n
}

// as gives the peers with the addresses at which a node reaches them.
func (n *network) as(from string, peers []Peer) (seen []Peer) {
	for _, p := range peers {
		if l := n.links[[2]string{from, p.Name}]; l != nil {
			p.Address = l.Addr().String()
		}
		seen = append(seen, p)
	}
	return seen
}

// isolate cuts all links from a node and to it, or mends them.
func (n *network) isolate(name string, cut bool) {
	for ends, l := range n.links {
		if ends[0] == name || ends[1] == name {
			l.set(cut)
		}
	}
}

func (l *link) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		for c := range l.conns {
			_ = c.Close()
		}
		clear(l.conns)
	}
}

// add notes a connection; false: the link is cut.
func (l *link) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		_ = c.Close()
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *link) serve() {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		if l.add(from) {
			go l.pass(from)
		}
	}
}

func (l *link) pass(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", l.to)
	if err != nil || !l.add(to) {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}()
	_, _ = io.Copy(to, from)
}

// Clients beside a leader that is cut off read nothing stale, by the lease or by a quorum;
// without either they do.
func TestLeaderThatIsCutOffAnswersNothingStale(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(o *Options)
		stale  bool
	}{
		{"lease", func(*Options) {}, false},
		{"quorum", func(o *Options) { o.QuorumReads = true }, false},
		{"no check", func(o *Options) { o.unsafeReads = true }, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, "a", "b", "c")
			c.net = newNetwork(t, c.peers)
			test.change(&c.o)
			nodes := c.start("a", "b", "c")
			old := c.leader(nodes)
			if !old.put("k|x", "old") {
				t.Fatal("the leader has lost its office")
			}

			// When a client of the leader goes on asking while another node is elected,
			newer := make(chan struct{}) // closed when a newer value was acknowledged
			answered := make(chan bool)  // whether there was an answer after that
			go func() {
				for {
					late := isClosed(newer)
					if may := old.AwaitRead(); late {
						answered <- may
						return
					}
					time.Sleep(time.Millisecond)
				}
			}()
			c.net.isolate(old.name, true)
			others := map[string]*running{}
			for name, r := range nodes {
				if name != old.name {
					others[name] = r
				}
			}
			l := c.leader(others)
			l.must(t, map[string]string{"k|x": "old"})
			if !l.put("k|x", "new") {
				t.Fatal("the new leader has lost its office")
			}
			close(newer)

			// then it gets no answer from the old leader once there is a newer value.
			if stale := <-answered; stale != test.stale {
				t.Errorf("stale answers: %v, want %v\n%v", stale, test.stale, c.log)
			}
			if old.put("k|x", "lost") {
				t.Error("a leader that is cut off has acknowledged a write")
			}

			// And the old leader follows when it is back.
			c.net.isolate(old.name, false)
			for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
				if s := nodes[old.name].Status(); s.Role == Follower && s.Committed >= nodes[l.name].Status().Committed {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("the old leader does not follow:\n%v", c.log)
				}
			}
		})
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// validOffice is one whose lease lasts for the whole test.
func validOffice() *Office {
	l := lease.New(24 * time.Hour)
	l.Confirm(l.Begin(lease.Moment{Wall: time.Duration(time.Now().UnixNano())}))
	return &Office{n: &Node{began: time.Now()}, lease: l, lost: make(chan struct{})}
}

// A read that the lease allows allocates nothing: each read of a socket asks.
func TestAwaitReadAllocatesNothing(t *testing.T) {
	o := validOffice()
	if n := testing.AllocsPerRun(100, func() { o.AwaitRead() }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	if !o.AwaitRead() {
		t.Error("a valid lease allows no read")
	}
}

func BenchmarkAwaitRead(b *testing.B) {
	o := validOffice()
	b.ReportAllocs()
	for b.Loop() {
		o.AwaitRead()
	}
}
