package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// Defaults and bounds of Options.
const (
	DefaultQueueBytes  = 64 << 20
	maxQueued          = 4096 // messages that wait for a node, however small
	maxConnections     = 64   // that others have made
	maxStrangers       = 64   // that have not said which node they are of; beyond, the oldest of the address that has most is ended
	handshakeTimeout   = 5 * time.Second
	minPause, maxPause = 20 * time.Millisecond, time.Second // between two attempts to connect
	writeTimeout       = 10 * time.Second
	// settled is how long a connection has to last to count as one: a node that is starting, or knows this one not
	// yet, closes it at once.
	settled = 500 * time.Millisecond
)

// Options of New.
type Options struct {
	Cluster uint64            // ID of the cluster
	ID      uint64            // of this node
	Address string            // where the others reach this node; they are told
	Level   uint32            // format levels that this node's program knows, for the others' Admit
	Peers   map[uint64]string // the other nodes' addresses
	// Name is the name of a node, for the log. It is called by any goroutine, and must not block.
	// nil: the log has IDs.
	Name func(id uint64) string
	// Admit is called when a node connects that says that it is of the cluster, with its address
	// and its Level. An error refuses it; otherwise left is called when the connection has ended. A node that is not among the peers is admitted as well:
	// the one that leads may have become a member by entries that this node has yet to get. nil:
	// only peers are admitted. It is called by one goroutine for each connection.
	Admit func(id uint64, address string, level uint32) (left func(), err error)
	// Port is where the others connect, and how this node connects to them.
	Port *port.Port
	// Receive is called with each message that arrives, by one goroutine for each
	// connection. While it blocks, the sender's messages wait.
	Receive func(m *raftpb.Message)
	// Unreachable is called when a message to a node was lost before it was sent. It must
	// not block. nil: nothing happens.
	Unreachable func(id uint64)
	// QueueBytes bounds what waits for one node: the data of entries, in bytes. 0: the
	// default. A message without data is taken beyond that, and so is one that finds the
	// queue empty, whatever its size; 4,096 messages are taken at the most.
	QueueBytes int64
	// Unacknowledged bounds how long what was sent to a node may be on its way: then the connection is
	// made anew, on Linux. 0: as long as the system tries.
	Unacknowledged time.Duration
	Logger         *slog.Logger // nil: slog.Default
}

// Transport sends and receives. Its methods are safe for concurrent use, but for those that say otherwise.
type Transport struct {
	o         Options
	peers     atomic.Pointer[map[uint64]*peer] // SetPeers replaces it
	strangers *sockets.Handshakes              // connections that have not said which node they are of
	open      chan struct{}                    // a place for each connection of a node
	ending    context.Context
	end       context.CancelFunc
	running   sync.WaitGroup

	sent, received, lost atomic.Uint64
}

// Figures are what a Transport has counted since it was made: messages.
type Figures struct{ Sent, Received, Lost uint64 }

// peer is another node.
type peer struct {
	id      uint64
	address string
	queue   chan queued
	out     output
	bytes   atomic.Int64    // in queue
	gone    context.Context // done when it is no peer any more
	remove  context.CancelFunc
}

// New begins to connect to the other nodes, and has the port give it their connections. It
// fails with port.ErrNeedsTLS.
func New(o Options) (*Transport, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.QueueBytes <= 0 {
		o.QueueBytes = DefaultQueueBytes
	}
	if o.Name == nil {
		o.Name = func(id uint64) string { return fmt.Sprintf("%x", id) }
	}
	if o.Unreachable == nil {
		o.Unreachable = func(uint64) {}
	}
	for _, address := range o.Peers {
		if err := o.Port.Allows(address); err != nil {
			return nil, err
		}
	}
	t := &Transport{o: o, strangers: sockets.NewHandshakes(maxStrangers), open: make(chan struct{}, maxConnections)}
	t.peers.Store(&map[uint64]*peer{})
	t.ending, t.end = context.WithCancel(context.Background())
	t.SetPeers(o.Peers)
	o.Port.Handle(magic, t.take)
	return t, nil
}

// SetPeers replaces the other nodes. Connections from and to those that are none any more are
// closed, and what is queued for them is lost. Calls must not overlap, also not with Close.
func (t *Transport) SetPeers(addresses map[uint64]string) {
	before, next := *t.peers.Load(), map[uint64]*peer{}
	var added []*peer
	for id, address := range addresses {
		switch p := before[id]; {
		case id == t.o.ID:
		case p != nil && p.address == address:
			next[id] = p
		default:
			p = &peer{id: id, address: address, queue: make(chan queued, maxQueued)}
			p.gone, p.remove = context.WithCancel(t.ending)
			next[id], added = p, append(added, p)
		}
	}
	t.peers.Store(&next)
	for id, p := range before {
		if next[id] != p {
			p.remove()
		}
	}
	for _, p := range added {
		t.running.Go(func() { t.runPeer(p) })
	}
}

func (t *Transport) peer(id uint64) *peer { return (*t.peers.Load())[id] }

// Figures gives them.
func (t *Transport) Figures() Figures {
	return Figures{Sent: t.sent.Load(), Received: t.received.Load(), Lost: t.lost.Load()}
}

// Send sends messages to their nodes, or queues them. It doesn't block: a message that finds no room
// is lost. Messages must not be changed afterwards. Calls must not overlap.
func (t *Transport) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		p := t.peer(m.GetTo())
		if p == nil || !t.pass(p, m) {
			t.lose(m.GetTo())
		}
	}
}

// enqueue leaves a message to the goroutine that sends to its node.
func (t *Transport) enqueue(p *peer, m *raftpb.Message) bool {
	size := dataOf(m)
	if waiting := p.bytes.Add(size); size > 0 && waiting > t.o.QueueBytes && waiting > size {
		p.bytes.Add(-size)
		return false
	}
	p.out.waiting.Add(1)
	select {
	case p.queue <- queued{message: m}:
		return true
	default:
		p.out.written(1)
		p.bytes.Add(-size)
		return false
	}
}

// dataOf is how many bytes of data a message has.
func dataOf(m *raftpb.Message) (n int64) {
	for _, e := range m.GetEntries() {
		n += int64(len(e.GetData()))
	}
	return n + int64(len(m.GetSnapshot().GetData()))
}

func (t *Transport) lose(id uint64) {
	t.lost.Add(1)
	t.o.Unreachable(id)
}

// Close closes all connections and waits for the goroutines that send. What is queued is
// lost. The goroutines that receive are the port's, which is closed afterwards.
func (t *Transport) Close() {
	t.end()
	t.running.Wait()
}

// runPeer sends what is queued for a node, over one connection after the other.
func (t *Transport) runPeer(p *peer) {
	defer failstop.End(t.o.Logger, "the sender of messages to a node")
	var reachable, said bool
	for pause := minPause; p.gone.Err() == nil; {
		conn, err := t.connect(p)
		if err == nil {
			began := time.Now()
			says := time.AfterFunc(settled, func() { t.o.Logger.Info("connected to a node", "to", t.o.Name(p.id), "address", p.address) })
			err = t.sendAll(p, conn)
			_ = conn.Close()
			if says.Stop(); time.Since(began) >= settled {
				pause, reachable, said = minPause, true, false
			}
		}
		if p.gone.Err() != nil {
			return
		}
		if !said {
			t.o.Logger.Warn("a node cannot be reached; connecting again", "to", t.o.Name(p.id), "address", p.address, "was connected", reachable, "error", err)
			said = true
		}
		t.empty(p)
		select {
		case <-time.After(pause):
		case <-p.gone.Done():
		}
		pause = min(2*pause, maxPause)
	}
}

// empty loses what is queued: it would be old when the node can be reached again.
func (t *Transport) empty(p *peer) {
	for {
		select {
		case q := <-p.queue:
			p.bytes.Add(-dataOf(q.message))
			p.out.written(1)
			t.lose(p.id)
		default:
			return
		}
	}
}

// connect makes a connection to a node and says who connects.
func (t *Transport) connect(p *peer) (net.Conn, error) {
	conn, err := t.o.Port.Dial(p.gone, p.address, magic)
	if err != nil {
		return nil, err
	}
	if err := boundUnacknowledged(conn, t.o.Unacknowledged); err != nil {
		t.o.Logger.Warn("after a cut of the network the connection to a node may be of no use for long", "to", t.o.Name(p.id), "address", p.address, "error", err)
	}
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	if _, err = conn.Write(appendHello(nil, hello{t.o.Cluster, t.o.ID, p.id, t.o.Level, t.o.Address})); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, conn.SetDeadline(time.Time{})
}
