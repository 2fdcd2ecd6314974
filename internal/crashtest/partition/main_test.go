package partition

import (
	"context"
	"errors"
	"flag"
	"net"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/harness/netns"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// parallel is how many of the tests run at the same time: they wait for elections most of the time.
const parallel = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", parallel)
	}
	testserver.Main(m)
}

// patience bounds a test.
const patience = 4 * time.Minute

// The programs of the negative controls, and the one whose clock can be wrong.
var (
	shifted   = sync.OnceValues(func() (string, error) { return build("holdfast_shifted_clock") })
	unchecked = sync.OnceValues(func() (string, error) { return build("holdfast_reads_unchecked") })
	early     = sync.OnceValues(func() (string, error) { return build("holdfast_acks_early") })
)

// build builds the program with a tag, beside the one that all tests use.
func build(tag string) (string, error) {
	program := filepath.Join(filepath.Dir(testserver.Binary()), tag)
	if out, err := exec.Command("go", "build", "-tags", tag, "-o", program, process.Holdfast).CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	return program, nil
}

func program(t *testing.T, control func() (string, error)) string {
	t.Helper()
	if control == nil {
		return testserver.Binary()
	}
	p, err := control()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// needsNetwork skips a test where no network can be made.
func needsNetwork(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short leaves out the elections of real nodes, which take a minute; a run without -short has them")
	}
	if err := netns.Unavailable(); err != nil {
		t.Skipf("no partitions: this test needs root on Linux, and iproute2: %v", err)
	}
}

// world is a running cluster in a test.
type world struct {
	*Cluster
	t   *testing.T
	ctx context.Context
}

// run starts a cluster and waits until clients of all nodes are served.
func run(t *testing.T, program string, plans []Plan, flags ...string) *world {
	t.Helper()
	c, err := New(program, t.TempDir(), plans, flags...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	w := &world{Cluster: c, t: t, ctx: ctx}
	t.Cleanup(func() {
		cancel()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the nodes said\n%s", c.Output())
		}
	})
	w.must(c.Start(c.Nodes()...))
	w.serving(c.Nodes()...)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// serving waits until clients of nodes are served.
func (w *world) serving(all ...*nodes.Node) {
	w.t.Helper()
	for _, n := range all {
		w.must(n.Probe(w.ctx))
	}
}

// leader waits until some nodes, or all if none is given, know a leader of a term higher than after.
func (w *world) leader(after uint64, of ...*nodes.Node) nodes.View {
	w.t.Helper()
	if of == nil {
		of = w.Nodes()
	}
	v, err := w.AwaitLeaderOf(w.ctx, after, func() []*nodes.Node { return of })
	w.must(err)
	return v
}

// lead has a node lead.
func (w *world) lead(n *nodes.Node) nodes.View {
	w.t.Helper()
	for {
		v := w.leader(0)
		if v.Leader == n {
			w.serving(n)
			return v
		}
		_ = w.Transfer(w.ctx, n) // the next look shows whether it has come about
		w.pause()
	}
}

// pause waits between two looks.
func (w *world) pause() {
	w.t.Helper()
	select {
	case <-time.After(50 * time.Millisecond):
	case <-w.ctx.Done():
		w.t.Fatal(w.ctx.Err())
	}
}

// eventually waits until something holds.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	for !holds() {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-w.ctx.Done():
			w.t.Fatalf("it never came about that %s", what)
		}
	}
}

// dialer is a client's way to a node.
type dialer struct {
	node    *nodes.Node
	dials   atomic.Int32
	written atomic.Int64  // bytes, over the first connection
	ended   chan struct{} // closed when the first connection has ended
}

func (d *dialer) dial(ctx context.Context) (net.Conn, error) {
	c, err := d.node.Dial(ctx)
	if err != nil || d.dials.Add(1) > 1 {
		return c, err
	}
	return &firstConn{Conn: c, dialer: d}, nil
}

// firstConn is the first connection of a client.
type firstConn struct {
	net.Conn
	dialer *dialer
	once   sync.Once
}

func (c *firstConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.dialer.written.Add(int64(n))
	return n, err
}

// Close is called by the client when the server has closed the connection.
func (c *firstConn) Close() error {
	c.once.Do(func() { close(c.dialer.ended) })
	return c.Conn.Close()
}

// dial connects a client to a node, from the host that the node runs on. While nodes elect a leader it tries
// again.
func (w *world) dial(n *nodes.Node) (*client.Client, *dialer) {
	w.t.Helper()
	for {
		d := &dialer{node: n, ended: make(chan struct{})}
		c, err := client.Dial(w.ctx, n.Addr, client.WithDialer(d.dial), client.WithKeepAlive(patience), client.WithTimeout(patience), client.WithBackoff(20*time.Millisecond, 200*time.Millisecond))
		if err == nil {
			w.t.Cleanup(func() { _ = c.Close() })
			return c, d
		}
		if w.ctx.Err() != nil {
			w.t.Fatalf("a client of node %s: %v", n.Name, err)
		}
	}
}

// set writes a key, and again if the answer is lost, because the leader has changed.
func (w *world) set(c *client.Client, key, value string) client.SetResult {
	w.t.Helper()
	for {
		r, err := c.Set(w.ctx, key, []byte(value))
		if err == nil {
			return r
		}
		if w.ctx.Err() != nil || !errors.Is(err, client.ErrUnknownOutcome) {
			w.t.Fatalf("SET %q: %v", key, err)
		}
	}
}

// line is what a node says of itself.
func (w *world) line(n *nodes.Node) control.Line {
	w.t.Helper()
	report, err := control.Status(w.ctx, n.Data)
	w.must(err)
	for _, l := range report.Nodes {
		if l.Name == n.Name {
			return l
		}
	}
	w.t.Fatalf("node %s does not know itself: %+v", n.Name, report)
	return control.Line{}
}
