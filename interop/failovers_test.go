package interop

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// With the word failovers in HOLDFAST_INTEROP the server that tests share is three nodes of a cluster, to any
// of which the SDK's clients connect, and whose leader is killed every ten seconds and started again.

// failoverEvery is how often the leader is killed.
const failoverEvery = 10 * time.Second

// underFailovers says whether the shared server is such a cluster.
var underFailovers bool

// sharedCluster is that cluster.
var sharedCluster struct {
	mu      sync.Mutex
	running *cluster
	clients []*server // for clients: addresses, which stay
	err     error
	began   time.Time
	next    int // which of clients the next client connects to first
	stop    chan struct{}
	stopped chan error
	kills   int // of the killer, until it has stopped
}

// sharedNodes gives the nodes of the shared cluster, starting it for the first test, the one first to which
// a client is to connect first.
func sharedNodes(t *testing.T) []*server {
	t.Helper()
	c := &sharedCluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil && c.err == nil {
		c.running, c.err = startCluster(t, func(name string) string { return filepath.Join(filepath.Dir(binary), "node-"+name) })
		if c.err == nil {
			for _, s := range c.running.any() {
				c.clients = append(c.clients, &server{tcp: s.tcp, logins: s.logins})
			}
			c.stop, c.stopped = make(chan struct{}), make(chan error, 1)
			go func() { c.stopped <- c.running.killLeaders(c.stop, &c.kills) }()
		}
	}
	if c.err != nil {
		t.Fatal(c.err)
	}
	c.next++
	at := c.next % len(c.clients)
	return append(append([]*server(nil), c.clients[at:]...), c.clients[:at]...)
}

// killLeaders kills the leader and starts it again, every ten seconds.
func (c *cluster) killLeaders(stop <-chan struct{}, kills *int) error {
	tick := time.NewTicker(failoverEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		leader, _ := c.look(0)
		if leader == "" {
			continue // the former one has just been killed, on a busy machine
		}
		s := c.nodes[leader]
		s.kill()
		*kills++
		next, err := startServerWith(s.dir, s.tcp, s.flags...)
		if err != nil {
			return fmt.Errorf("node %s, after kill -9: %w", leader, err)
		}
		c.nodes[leader] = next
	}
}

// endSharedCluster ends the shared cluster after all tests. It fails if no leader was killed, or a node did not
// start again.
func endSharedCluster() error {
	c := &sharedCluster
	if c.running == nil {
		return nil
	}
	close(c.stop)
	err := <-c.stopped
	for _, s := range c.running.nodes {
		s.kill()
	}
	fmt.Fprintf(os.Stderr, "the leader was killed %d times\n", c.kills)
	if err == nil && c.kills == 0 {
		err = errors.New("the tests were over before a leader was killed: give a larger -count to go test")
	}
	return err
}

// needsOneConnection skips a test under failovers that counts the notifications of one connection:
// registrations end with it, as the protocol says. TestSDKThroughFailovers has watches that go on.
func needsOneConnection(t *testing.T) {
	t.Helper()
	if underFailovers {
		t.Skip("counts the notifications of one connection, and failovers end it; a run without failovers has this test")
	}
}

// once are the tests that have called withFailover.
var once sync.Map

// withFailover is a time for which a test waits: usual, or under failovers longer than one of them takes, and then the
// test is skipped from its second run on, so that many of the others are run while it would wait.
func withFailover(t *testing.T, usual time.Duration) time.Duration {
	t.Helper()
	if !underFailovers {
		return usual
	}
	if _, ran := once.LoadOrStore(t.Name(), true); ran {
		t.Skip("waits for longer than a failover takes, which its first run has done")
	}
	return 10 * time.Second
}
