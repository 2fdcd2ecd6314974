package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// patience is how long a test waits for what must happen.
const patience = 2 * time.Minute

// election is long enough for a leader on a busy machine to stay in office while a test asks it
// for something.
const election = 2 * time.Second

// address is one that no other test uses, and no connection of another program.
func address(t testing.TB) string {
	t.Helper()
	address, err := process.UnusedAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// cluster is a cluster whose nodes are all in this process.
type cluster struct {
	t     testing.TB
	peers []Peer
	dirs  map[string]string
	log   *logs.Text
	o     Options  // what all nodes have in common
	net   *network // nil: nodes reach each other without one
	fs    map[string]journal.FS

	removable bool       // nodes may end because they are no part of the cluster
	fatal     chan error // what they end with; capacity 10
}

func newCluster(t testing.TB, names ...string) *cluster {
	c := &cluster{t: t, dirs: map[string]string{}, log: &logs.Text{}, o: Options{Election: election}, fs: map[string]journal.FS{}, fatal: make(chan error, 10)}
	for _, name := range names {
		c.peers = append(c.peers, Peer{Name: name, Address: address(t)})
		c.dirs[name] = t.TempDir()
	}
	return c
}

func (c *cluster) options(name string) Options {
	o := c.o
	o.Dir, o.Name, o.Peers, o.FS = c.dirs[name], name, c.peers, c.fs[name]
	if c.net != nil {
		o.Peers = c.net.as(name, c.peers)
	}
	o.Logger = slog.New(slog.NewTextHandler(c.log, nil)).With("node", name)
	o.Fatal = func(err error) {
		if c.removable && (errors.Is(err, ErrRemoved) || errors.Is(err, ErrTwice) || errors.Is(err, ErrOtherCluster) || errors.Is(err, ErrPeers) || errors.Is(err, ErrOldData)) {
			c.fatal <- err
			return
		}
		c.t.Errorf("Fatal: %v", err)
	}
	return o
}

// running is a node with the journals of its server, one after the other.
type running struct {
	c    *cluster
	name string
	*Node
	stop  context.CancelFunc
	ended chan struct{}
	led   chan *leading // each office
}

// leading is a journal that is open because its node leads.
type leading struct {
	*journal.Journal
	*Office
	name string
}

// start starts nodes at the same time, and waits until they know each other.
func (c *cluster) start(names ...string) map[string]*running {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	type opened struct {
		name string
		node *Node
		err  error
	}
	all, nodes := make(chan opened), map[string]*running{}
	for _, name := range names {
		go func() {
			n, err := Open(ctx, c.options(name))
			all <- opened{name, n, err}
		}()
	}
	for range names {
		o := <-all
		if o.err != nil {
			c.t.Errorf("%s: %v", o.name, o.err)
			continue
		}
		nodes[o.name] = c.run(o.name, o.node)
	}
	if c.t.Failed() {
		c.t.FailNow()
	}
	return nodes
}

// run opens one journal after the other, as a server does.
func (c *cluster) run(name string, n *Node) *running {
	ctx, stop := context.WithCancel(context.Background())
	r := &running{c: c, name: name, Node: n, stop: stop, ended: make(chan struct{}), led: make(chan *leading, 100)}
	go func() {
		defer close(r.ended)
		for ctx.Err() == nil {
			l := n.Log(ctx)
			j, err := journal.Open(journal.Options{
				Dir: c.dirs[name], Logger: slog.New(slog.DiscardHandler), Log: l.Open, Row: l.Row,
				Fatal: func(err error) {
					if !errors.Is(err, journal.ErrLost) {
						c.t.Errorf("%s: %v", name, err)
					}
				},
			})
			if errors.Is(err, ErrReplaced) {
				continue
			}
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, ErrStopped) {
					c.t.Errorf("%s: %v", name, err)
				}
				return
			}
			l.SetJournal(j)
			r.led <- &leading{j, l.Office(), name}
			select {
			case <-l.Office().Lost():
			case <-ctx.Done():
			}
			if err := j.Close(); err != nil {
				c.t.Errorf("%s: %v", name, err)
			}
		}
	}()
	c.t.Cleanup(r.end)
	return r
}

// end ends a node, also a second time.
func (r *running) end() {
	r.stop()
	<-r.ended
	if err := r.Close(); err != nil {
		r.c.t.Errorf("%s: %v", r.name, err)
	}
}

// leader waits until one of the nodes leads.
func (c *cluster) leader(nodes map[string]*running) *leading {
	c.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, r := range nodes {
			select {
			case l := <-r.led:
				if !l.isLost() {
					return l
				}
			default:
			}
		}
	}
	c.t.Fatalf("no node leads:\n%v", c.log)
	return nil
}

// put writes a row and says whether it is acknowledged.
func (l *leading) put(key, value string) bool {
	done := make(chan struct{})
	a := l.Begin()
	a.Set([]byte(key), []byte(value))
	a.End(waiter(func() { close(done) }))
	select {
	case <-done:
		return true
	case <-l.Lost():
		return false
	}
}

type calling struct{ f func() }

func (c *calling) Durable(journal.Seq) { c.f() }

func waiter(f func()) journal.Waiter { return &calling{f} }

// must checks that the leader has rows.
func (l *leading) must(t testing.TB, want map[string]string) {
	t.Helper()
	for key, value := range want {
		got, found, err := l.Get([]byte(key))
		if err != nil || !found || string(got) != value {
			t.Fatalf("node %s has %s=%q, %v, %v, want %q", l.name, key, got, found, err, value)
		}
	}
}

// What the leader has acknowledged, the next leaders have, one after the other; the nodes that
// were ended come back.
func TestEveryLeaderHasWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	nodes := c.start("a", "b", "c")
	want := map[string]string{}
	for round := range 4 {
		l := c.leader(nodes)
		l.must(t, want)
		for i := range 50 {
			key := fmt.Sprintf("k|%d.%d", round, i)
			if !l.put(key, key) {
				break // another node has been elected
			}
			want[key] = key
		}
		nodes[l.name].end()
		delete(nodes, l.name)
		next := c.leader(nodes)
		next.must(t, want)
		nodes[next.name].led <- next
		nodes[l.name] = c.start(l.name)[l.name]
	}
	if len(want) == 0 {
		t.Error("nothing was acknowledged")
	}
}

// A leader that gives its office away serves nothing more, and the other node has everything.
func TestTransfer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	nodes := c.start("a", "b", "c")
	l := c.leader(nodes)
	if !l.AwaitRead() {
		t.Fatalf("the leader does not answer reads:\n%v", c.log)
	}
	l.put("k|1", "v")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := nodes[l.name].Transfer(ctx, 0); err != nil {
		t.Fatal(err)
	}
	<-l.Lost()
	if l.AwaitRead() {
		t.Error("a node that has lost its office answers reads")
	}
	next := c.leader(nodes)
	next.must(t, map[string]string{"k|1": "v"})
	if s := nodes[next.name].Status(); s.Role != Leader || !s.Ready || len(s.Members) != 3 || s.Name != next.name {
		t.Errorf("the status of the leader is %+v", s)
	}
}

// A leader without a quorum loses its office, and reads wait until then.
func TestLeaderAlone(t *testing.T) {
	t.Parallel()
	for _, quorum := range []bool{false, true} {
		c := newCluster(t, "a", "b", "c")
		c.o.QuorumReads = quorum
		nodes := c.start("a", "b", "c")
		l := c.leader(nodes)
		for _, r := range nodes {
			if r.name != l.name {
				r.end()
			}
		}
		for l.AwaitRead() {
			time.Sleep(time.Millisecond)
		}
		<-l.Lost()
	}
}

// A node alone is a cluster of one, and keeps what it has over starts.
func TestClusterOfOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a")
	for i := range 3 {
		r := c.start("a")
		l := c.leader(r)
		if i > 0 {
			l.must(t, map[string]string{"k|1": fmt.Sprint(i - 1)})
		}
		if !l.put("k|1", fmt.Sprint(i)) {
			t.Fatal("a node alone has lost its office")
		}
		r["a"].end()
	}
}
