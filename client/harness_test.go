package client_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// patience is how long anything may take before it counts as never happening.
const patience = time.Minute

func TestMain(m *testing.M) { testserver.Main(m) }

// dial connects a client that is closed with the test.
func dial(t *testing.T, address string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.Dial(within(t, patience), address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// within is a context that ends with the test at the latest.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// key is a key that no other test uses, nor the same test when it runs again.
func key(t *testing.T, name string) string {
	run, _ := runs.LoadOrStore(t, runCount.Add(1))
	return fmt.Sprintf("%s#%d/%s", t.Name(), run, name)
}

var (
	runs     sync.Map // *testing.T → number
	runCount atomic.Int64
)

func mustSet(t *testing.T, c *client.Client, k, value string, opts ...client.SetOption) {
	t.Helper()
	if _, err := c.Set(within(t, patience), k, []byte(value), opts...); err != nil {
		t.Fatalf("Set(%q, %q): %v", k, value, err)
	}
}

func mustGet(t *testing.T, c *client.Client, k string) client.Value {
	t.Helper()
	v, found, err := c.Get(within(t, patience), k)
	if err != nil || !found {
		t.Fatalf("Get(%q): found %v, error %v", k, found, err)
	}
	return v
}

// next is the next event of a watch.
func next(t *testing.T, w *client.Watch) client.Event {
	t.Helper()
	select {
	case e, ok := <-w.Chan():
		if !ok {
			t.Fatalf("the watch has ended: %v", w.Err())
		}
		return e
	case <-time.After(patience):
		t.Fatal("no event came")
	}
	panic("unreachable")
}

// eventually waits for something that is not announced.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

// proxy stands between client and server, and can fail in the ways of a
// network. It passes everything on until it is told otherwise.
type proxy struct {
	addr   string
	target string

	mu       sync.Mutex
	open     []net.Conn    // both sides of every connection
	refusing bool          // new connections are closed at once
	gate     chan struct{} // not nil: what the server says waits for it to be closed
	upstream []byte        // what came from clients and was passed on
	accepted int           // connections that were passed on
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), target: target}
	t.Cleanup(func() {
		_ = l.Close()
		p.release()
		p.cut()
	})
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			p.pass(nc)
		}
	}()
	return p
}

func (p *proxy) pass(in net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusing {
		_ = in.Close()
		return
	}
	out, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = in.Close()
		return
	}
	p.accepted++
	p.open = append(p.open, in, out)
	go p.copy(out, in, true)
	go p.copy(in, out, false)
}

func (p *proxy) copy(to, from net.Conn, up bool) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			p.mu.Lock()
			gate := p.gate
			p.mu.Unlock()
			if !up && gate != nil {
				<-gate
			}
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
			if up {
				p.mu.Lock()
				p.upstream = append(p.upstream, b[:n]...)
				p.mu.Unlock()
			}
		}
		if err != nil {
			return
		}
	}
}

// hold keeps back what the server says from now on.
func (p *proxy) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate == nil {
		p.gate = make(chan struct{})
	}
}

// release lets it through again.
func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate != nil {
		close(p.gate)
		p.gate = nil
	}
}

// cut breaks all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, nc := range p.open {
		_ = nc.(*net.TCPConn).SetLinger(0)
		_ = nc.Close()
	}
	p.open = nil
}

// refuse says whether new connections fail.
func (p *proxy) refuse(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = yes
}

// passed reports whether clients have sent text, and the server has been given it.
func (p *proxy) passed(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Contains(p.upstream, []byte(text))
}

// connections is how many have been made.
func (p *proxy) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// exampleClient is a client of a server of the example's own, which has no keys of others.
func exampleClient() *client.Client {
	c, err := client.Dial(context.Background(), testserver.ForExample())
	if err != nil {
		panic(err)
	}
	return c
}
