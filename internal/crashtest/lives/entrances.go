package lives

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Entrances are the nodes of a cluster as the actors of one life see them. Its methods are safe
// for concurrent use.
type Entrances struct {
	Unasked chan struct{} // closed when a connection has ended that no fault of the run explains

	mu      sync.Mutex
	rng     *rand.Rand          // guarded by mu
	nodes   []*entrance         // guarded by mu
	links   map[*Link]*entrance // guarded by mu: open connections
	unasked bool                // guarded by mu: Unasked is closed
	moved   bool                // guarded by mu: the run has made another node lead
	over    bool                // guarded by mu: no new connections
}

// Dialer connects to a broker until ctx ends.
type Dialer func(ctx context.Context) (net.Conn, error)

// entrance is one node.
type entrance struct {
	name     string
	dial     Dialer
	open     bool // it runs, as far as the run knows
	followed bool // it was killed or paused in this life while another node led
}

// NewEntrances are those of a life that begins. Nodes are added with Open.
func NewEntrances(rng *rand.Rand) *Entrances {
	return &Entrances{rng: rng, links: map[*Link]*entrance{}, Unasked: make(chan struct{})}
}

func (e *Entrances) find(name string) *entrance {
	for _, n := range e.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// Open has actors connect to a node from now on.
func (e *Entrances) Open(name string, dial Dialer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.find(name)
	if n == nil {
		n = &entrance{name: name}
		e.nodes = append(e.nodes, n)
	}
	n.dial, n.open = dial, true
}

// Fell is called before the run kills or pauses a node that does not lead.
func (e *Entrances) Fell(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.find(name); n != nil {
		n.open, n.followed = false, true
	}
}

// Move is called before the run does what ends the leadership of a node: it kills or pauses the leader or
// most of the nodes, or has the leadership transferred. Leaves is the node that goes, if one does.
func (e *Entrances) Move(leaves string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.moved = true
	if n := e.find(leaves); n != nil {
		n.open = false
	}
}

// Close keeps actors from making connections.
func (e *Entrances) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
}

// Left is how many connections are open, and through which nodes.
func (e *Entrances) Left() (n int, through map[string]int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	through = map[string]int{}
	for _, node := range e.links {
		through[node.name]++
	}
	return len(e.links), through
}

// Drop closes all connections.
func (e *Entrances) Drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for k := range e.links {
		_ = k.Conn.Close()
	}
}

var errOver = errors.New("the life is over")

// choose gives a node to connect to.
func (e *Entrances) choose() (*entrance, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var open []*entrance
	for _, n := range e.nodes {
		if n.open {
			open = append(open, n)
		}
	}
	switch {
	case e.over:
		return nil, errOver
	case len(open) == 0:
		return nil, lost{at: &entrance{name: "none"}, err: errors.New("no node runs")}
	}
	return open[e.rng.IntN(len(open))], nil
}

// enter notes a connection that was accepted. It fails if the life is over.
func (e *Entrances) enter(k *Link) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return errOver
	}
	k.doors = e
	e.links[k] = k.at
	return nil
}

func (e *Entrances) leave(k *Link) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.links, k)
}

// lost is the end of a connection to a node, or of an attempt.
type lost struct {
	at  *entrance
	err error
}

func (l lost) Error() string { return fmt.Sprintf("through node %s: %v", l.at.name, l.err) }
func (l lost) Unwrap() error { return l.err }

// again says whether the actor whose connection has ended connects again in this life: if the node has died
// that it was connected to while another one led or, with anyLeader, whatever it was. The end of a
// connection that the run has not caused ends the life.
func (e *Entrances) again(cause error, anyLeader bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	var l lost
	if e.over || !errors.As(cause, &l) {
		return false
	}
	if l.at.followed && !e.moved && !e.unasked {
		return true
	}
	if !e.moved && !e.unasked {
		e.unasked = true
		close(e.Unasked)
	}
	return anyLeader
}

// ended is the error of a connection that has ended, to a node or, with nil, to one server.
func (n *entrance) ended(err error) error {
	if n == nil || err == nil {
		return err
	}
	return lost{n, err}
}

// refused is the error of a connection that was refused or ended with a reason. A cluster may
// do so while it changes its leader.
func (n *entrance) refused(code mqtt.ReasonCode, reason string) error {
	if n != nil && (code == mqtt.ServerUnavailable || code == mqtt.ServerShuttingDown) {
		return lost{n, fmt.Errorf("%v %s", code, reason)}
	}
	return fmt.Errorf("%w: %v %s", errRefused, code, reason)
}

// againAfter is how long an actor waits before it connects again.
const againAfter = 10 * time.Millisecond

// Rest waits before an actor connects again. It returns false if the life has ended.
func (l *Life) Rest() bool {
	next := time.NewTimer(againAfter)
	defer next.Stop()
	select {
	case <-next.C:
		return true
	case <-l.Dead:
		return false
	}
}
