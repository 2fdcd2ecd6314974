package lease_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/lease"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

const (
	// patience is how long anything may take before it counts as never happening.
	patience = time.Minute
	// forever is longer than any test: what happens before wasn't a matter of
	// time.
	forever = time.Hour
)

// dial connects a client that is closed with the test.
func dial(t *testing.T, address string, opts ...client.Option) *client.Client {
	t.Helper()
	opts = append([]client.Option{client.WithBackoff(time.Millisecond, 20*time.Millisecond)}, opts...)
	c, err := client.Dial(within(t), address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// within is a context that outlives everything but a test that hangs.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func acquire(t *testing.T, c *client.Client, name string, opts ...lease.Option) *lease.Lease {
	t.Helper()
	l, err := lease.Acquire(within(t), c, name, opts...)
	if err != nil {
		t.Fatalf("acquire %q: %v", name, err)
	}
	return l
}

func newLock(t *testing.T, c *client.Client, name string, opts ...lease.Option) *lease.Lock {
	t.Helper()
	k, err := lease.NewLock(c, name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// locking is a Lock that is under way.
type locking struct {
	held chan *lease.Lease
	err  chan error
}

func startLocking(ctx context.Context, k *lease.Lock) *locking {
	return start(func() (*lease.Lease, error) { return k.Lock(ctx) })
}

func start(lock func() (*lease.Lease, error)) *locking {
	l := &locking{held: make(chan *lease.Lease, 1), err: make(chan error, 1)}
	go func() {
		if held, err := lock(); err != nil {
			l.err <- err
		} else {
			l.held <- held
		}
	}()
	return l
}

func (l *locking) wait(t *testing.T) *lease.Lease {
	t.Helper()
	select {
	case held := <-l.held:
		return held
	case err := <-l.err:
		t.Fatalf("lock: %v", err)
	case <-time.After(patience):
		t.Fatal("the lock was never acquired")
	}
	panic("unreachable")
}

func (l *locking) mustFail(t *testing.T, want error) {
	t.Helper()
	select {
	case <-l.held:
		t.Fatal("the lock was acquired")
	case err := <-l.err:
		if !errors.Is(err, want) {
			t.Errorf("lock: %v, want %v", err, want)
		}
	case <-time.After(patience):
		t.Fatal("it still waits")
	}
}

func release(t *testing.T, l *lease.Lease) {
	t.Helper()
	if err := l.Release(within(t)); err != nil {
		t.Errorf("release: %v", err)
	}
}

// mustEnd waits for the end of a lease and compares why.
func mustEnd(t *testing.T, l *lease.Lease, want error) {
	t.Helper()
	select {
	case <-l.Context().Done():
		if !errors.Is(l.Err(), want) {
			t.Errorf("the lease ended with %v, want %v", l.Err(), want)
		}
	case <-time.After(patience):
		t.Fatal("the lease goes on")
	}
}

func mustBeHeldBy(t *testing.T, c *client.Client, name, want string) {
	t.Helper()
	holder, held, err := lease.Holder(within(t), c, name)
	if err != nil || holder != want || held != (want != "") {
		t.Errorf("%q is held by %q (%v), %v; want %q", name, holder, held, err, want)
	}
}

func mustSet(t *testing.T, c *client.Client, key, value string, opts ...client.SetOption) {
	t.Helper()
	if _, err := c.Set(within(t), key, []byte(value), opts...); err != nil {
		t.Fatalf("Set(%q, %q): %v", key, value, err)
	}
}

// value is what a key holds, "" for nothing.
func value(t *testing.T, c *client.Client, key string) string {
	t.Helper()
	v, _, err := c.Get(within(t), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(v.Bytes)
}

func watch(t *testing.T, c *client.Client, key string) *client.Watch {
	t.Helper()
	w, err := c.Watch(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// await takes a watch's events until one is of this kind.
func await(t *testing.T, w *client.Watch, kind client.EventKind) client.Event {
	t.Helper()
	for end := time.After(patience); ; {
		select {
		case e, open := <-w.Chan():
			if !open {
				t.Fatalf("the watch has ended: %v", w.Err())
			}
			if e.Kind == kind {
				return e
			}
		case <-end:
			t.Fatalf("the key was never %v", kind)
		}
	}
}

// network is what lies between a client and the server, and can fail. Give its
// dial to the client.
type network struct {
	address string

	mu       sync.Mutex
	lines    []*line       // under mu
	refusing bool          // under mu: new connections fail
	up, down chan struct{} // under mu; not nil: what is sent up, or comes down, waits for it to be closed
	asked    atomic.Int64  // bytes that clients have sent
	cutEvery atomic.Int64  // not 0: break the connection each time that many have been sent
}

func newNetwork(t *testing.T, address string) *network {
	n := &network{address: address}
	t.Cleanup(n.heal) // before the clients are closed: they must be able to say goodbye
	return n
}

func (n *network) dial(ctx context.Context) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refusing {
		return nil, errors.New("network down")
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", n.address)
	if err != nil {
		return nil, err
	}
	l := &line{Conn: nc, net: n, closed: make(chan struct{})}
	n.lines = append(n.lines, l)
	return l, nil
}

// refuse breaks all connections and lets none be made until heal.
func (n *network) refuse() {
	n.mu.Lock()
	n.refusing = true
	n.mu.Unlock()
	n.cut()
}

// cut breaks all connections. What is held back in them is lost.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.lines {
		_ = l.Conn.(*net.TCPConn).SetLinger(0)
		_ = l.Close()
	}
	n.lines = nil
}

// holdRequests keeps back what clients say; holdAnswers what the server says.
func (n *network) holdRequests() { n.hold(&n.up) }
func (n *network) holdAnswers()  { n.hold(&n.down) }

func (n *network) hold(gate *chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if *gate == nil {
		*gate = make(chan struct{})
	}
}

// heal lets everything through again.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refusing = false
	for _, gate := range []*chan struct{}{&n.up, &n.down} {
		if *gate != nil {
			close(*gate)
			*gate = nil
		}
	}
}

// line is one connection through a network.
type line struct {
	net.Conn
	net    *network
	once   sync.Once
	closed chan struct{}
}

func (l *line) Read(p []byte) (int, error) {
	count, err := l.Conn.Read(p)
	l.net.mu.Lock()
	gate := l.net.down
	l.net.mu.Unlock()
	if !l.pass(gate) {
		return 0, net.ErrClosed
	}
	return count, err
}

func (l *line) Write(p []byte) (int, error) {
	l.net.mu.Lock()
	gate := l.net.up
	l.net.mu.Unlock()
	if !l.pass(gate) {
		return 0, net.ErrClosed
	}
	count, err := l.Conn.Write(p)
	after := l.net.asked.Add(int64(count))
	if every := l.net.cutEvery.Load(); every > 0 && after/every != (after-int64(count))/every {
		l.net.cut()
	}
	return count, err
}

// pass waits until the gate is open; false if the connection has ended before.
func (l *line) pass(gate chan struct{}) bool {
	if gate != nil {
		select {
		case <-gate:
		case <-l.closed:
		}
	}
	select {
	case <-l.closed:
		return false
	default:
		return true
	}
}

func (l *line) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Conn.Close()
}

// through dials a server through a network that can fail.
func through(t *testing.T, address string, opts ...client.Option) (*client.Client, *network) {
	t.Helper()
	n := newNetwork(t, address)
	opts = append([]client.Option{client.WithBackoff(time.Millisecond, 20*time.Millisecond), client.WithDialer(n.dial)}, opts...)
	c, err := client.New(address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	t.Cleanup(n.heal) // again: cleanups run last in, first out
	// With a short timeout a busy machine may need several attempts.
	for ctx := within(t); ; {
		if _, _, err := c.Get(context.Background(), "connected"); err == nil {
			break
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	return c, n
}

// addOne reads a number and writes the next one.
func addOne(ctx context.Context, old []byte, found bool) ([]byte, bool, error) {
	n := 0
	if found {
		if _, err := fmt.Sscan(string(old), &n); err != nil {
			return nil, false, err
		}
	}
	return fmt.Append(nil, n+1), true, nil
}
