package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
)

// Defaults and bounds of Options.
const (
	DefaultQueueBytes  = 64 << 20
	maxQueued          = 4096 // messages that wait for a node, however small
	maxConnections     = 64   // that others have made
	handshakeTimeout   = 5 * time.Second
	minPause, maxPause = 20 * time.Millisecond, time.Second // between two attempts to connect
	writeTimeout       = 10 * time.Second
)

// ErrNeedsTLS: the address is not one of the loopback interface, and there is no mutual TLS.
var ErrNeedsTLS = errors.New("nodes must prove themselves by certificates, unless they all run on one machine: give a certificate, its key and the CA of the nodes, or listen on a loopback address")

// Options of Listen.
type Options struct {
	Cluster uint64            // ID of the cluster
	ID      uint64            // of this node
	Address string            // to listen on
	Peers   map[uint64]string // the other nodes' addresses
	// TLS has the node's certificate, and the CA of the nodes in both RootCAs and ClientCAs.
	// nil: without TLS, which only loopback addresses allow. It is not changed.
	TLS *tls.Config
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
	Logger     *slog.Logger // nil: slog.Default
}

// Transport sends and receives. Its methods are safe for concurrent use.
type Transport struct {
	o        Options
	listener net.Listener
	peers    map[uint64]*peer
	open     chan struct{} // a place for each connection that others have made
	ending   context.Context
	end      context.CancelFunc
	running  sync.WaitGroup

	sent, received, lost atomic.Uint64
}

// Figures are what a Transport has counted since it was made: messages.
type Figures struct{ Sent, Received, Lost uint64 }

// peer is another node.
type peer struct {
	id      uint64
	address string
	queue   chan *raftpb.Message
	bytes   atomic.Int64 // in queue
}

// Listen begins to listen and to connect to the other nodes. It fails with ErrNeedsTLS, or
// with what the system says.
func Listen(o Options) (*Transport, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.QueueBytes <= 0 {
		o.QueueBytes = DefaultQueueBytes
	}
	if o.Unreachable == nil {
		o.Unreachable = func(uint64) {}
	}
	if o.TLS == nil {
		for _, address := range append([]string{o.Address}, addresses(o.Peers)...) {
			if !isLoopback(address) {
				return nil, fmt.Errorf("%s: %w", address, ErrNeedsTLS)
			}
		}
	}
	listener, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, err
	}
	t := &Transport{o: o, listener: listener, peers: map[uint64]*peer{}, open: make(chan struct{}, maxConnections)}
	t.ending, t.end = context.WithCancel(context.Background())
	for id, address := range o.Peers {
		if id != o.ID {
			t.peers[id] = &peer{id: id, address: address, queue: make(chan *raftpb.Message, maxQueued)}
		}
	}
	t.running.Go(t.accept) // reads peers, which do not change any more
	for _, p := range t.peers {
		t.running.Go(func() { t.runPeer(p) })
	}
	return t, nil
}

func addresses(peers map[uint64]string) (all []string) {
	for _, address := range peers {
		all = append(all, address)
	}
	return all
}

// isLoopback says whether an address is certainly one of the loopback interface: a name
// other than localhost may become another address later.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// Addr is the address that the node listens on.
func (t *Transport) Addr() net.Addr { return t.listener.Addr() }

// Figures gives them.
func (t *Transport) Figures() Figures {
	return Figures{Sent: t.sent.Load(), Received: t.received.Load(), Lost: t.lost.Load()}
}

// Send queues messages for their nodes. It doesn't block: a message that finds no room is
// lost. Messages must not be changed afterwards.
func (t *Transport) Send(messages []*raftpb.Message) {
	for _, m := range messages {
		p := t.peers[m.GetTo()]
		if p == nil || !t.enqueue(p, m) {
			t.lose(m.GetTo())
		}
	}
}

func (t *Transport) enqueue(p *peer, m *raftpb.Message) bool {
	size := dataOf(m)
	if waiting := p.bytes.Add(size); size > 0 && waiting > t.o.QueueBytes && waiting > size {
		p.bytes.Add(-size)
		return false
	}
	select {
	case p.queue <- m:
		return true
	default:
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

// Close closes all connections and waits for the goroutines. What is queued is lost.
func (t *Transport) Close() error {
	t.end()
	err := t.listener.Close()
	t.running.Wait()
	return err
}

// runPeer sends what is queued for a node, over one connection after the other.
func (t *Transport) runPeer(p *peer) {
	defer failstop.End(t.o.Logger, "the sender of messages to a node")
	var reachable, said bool
	for pause := minPause; t.ending.Err() == nil; {
		conn, err := t.connect(p)
		if err == nil {
			pause = minPause
			t.o.Logger.Info("connected to a node", "node", fmt.Sprintf("%x", p.id), "address", p.address)
			reachable, said = true, false
			err = t.sendAll(p, conn)
			_ = conn.Close()
		}
		if t.ending.Err() != nil {
			return
		}
		if !said {
			t.o.Logger.Warn("a node cannot be reached; connecting again", "node", fmt.Sprintf("%x", p.id), "address", p.address, "was connected", reachable, "error", err)
			said = true
		}
		t.empty(p)
		select {
		case <-time.After(pause):
		case <-t.ending.Done():
		}
		pause = min(2*pause, maxPause)
	}
}

// empty loses what is queued: it would be old when the node can be reached again.
func (t *Transport) empty(p *peer) {
	for {
		select {
		case m := <-p.queue:
			p.bytes.Add(-dataOf(m))
			t.lose(p.id)
		default:
			return
		}
	}
}

// connect makes a connection to a node and says who connects.
func (t *Transport) connect(p *peer) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.ending, handshakeTimeout)
	defer cancel()
	var conn net.Conn
	var err error
	if t.o.TLS == nil {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", p.address)
	} else {
		conn, err = (&tls.Dialer{Config: t.o.TLS.Clone()}).DialContext(ctx, "tcp", p.address)
	}
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err = conn.Write(appendHello(nil, hello{t.o.Cluster, t.o.ID, p.id})); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, conn.SetDeadline(time.Time{})
}
