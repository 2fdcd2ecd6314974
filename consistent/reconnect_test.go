package consistent_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// cable connects, and can be cut.
type cable struct {
	address string
	again   chan struct{} // gets something for each connection

	mu    sync.Mutex
	conns []net.Conn // under mu
}

func (c *cable) dial(ctx context.Context) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.conns = append(c.conns, conn)
	c.mu.Unlock()
	c.again <- struct{}{}
	return conn, nil
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// Both connections are lost while the handler has a message. The server sends it again
// over the next one; it has taken effect once, every output is a copy of the first, and
// the messages after it are processed: the acknowledgement of the lost connection has
// not been given for one of theirs.
func TestConnectionLostWhileProcessing(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	line := &cable{address: addr, again: make(chan struct{}, 1000)}
	conn := dial(t, addr, client.WithDialer(line.dial), client.WithClientID("instance"))
	begun, goOn := make(chan struct{}), make(chan struct{})
	var first sync.Once
	p := newProcessor(t, conn, "bank", consistent.WithAttempts(3), quickly)
	err := consistent.Handle(p, "deposits/+", accountOf, func(c *consistent.Context, s account, m deposit) (account, []consistent.Message, error) {
		first.Do(func() {
			close(begun)
			<-goOn
		})
		return book(c, s, m)
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, p)
	o := observe(t, addr, "balances/+")
	o.publish(t, message("1", deposit{"ann", 10}))
	<-begun
	for range 2 { // those that were made by dial
		<-line.again
	}

	line.cut()
	for range 2 {
		select {
		case <-line.again:
		case <-time.After(patience):
			t.Fatal("no connection is made again")
		}
	}
	close(goOn)
	o.publish(t, message("2", deposit{"ann", 5}), message("3", deposit{"ann", 1}))

	seen := make(map[string]string) // the balance by the output's ID
	for last := ""; last != `{"Account":"ann","Balance":16}`; {
		m := o.next(t)
		last = string(m.Payload)
		id, _ := m.UserProperties.Get("id")
		if before, ok := seen[id]; ok && before != last {
			t.Errorf("output %s was %s, and is %s", id, before, last)
		}
		seen[id] = last
	}
	if len(seen) != 3 {
		t.Errorf("outputs %v, want one for each of 3 messages", seen)
	}
	if s, _ := state(t, dial(t, addr), "bank/ann"); s != `{"Balance":16,"Deposits":3}` {
		t.Errorf("state %s", s)
	}
}
