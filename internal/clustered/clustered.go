// Package clustered runs a server on a node of a cluster: the node, the listeners for clients,
// the socket for operators, and one server after the other, each for as long as the node leads.
//
// A server that loses its office ends, because its memory may hold what was never committed;
// the next one reads everything from the disk. The listeners outlive it: in between, clients
// are passed on to the node that leads.
package clustered

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/admin"
	"github.com/holdfast-mqtt/holdfast/internal/backup"
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/fronts"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/metrics"
	"github.com/holdfast-mqtt/holdfast/internal/replica/clients"
	"github.com/holdfast-mqtt/holdfast/internal/replica/consensus"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/replica/convert"
	"github.com/holdfast-mqtt/holdfast/internal/replica/founding"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
	"github.com/holdfast-mqtt/holdfast/internal/replica/relay"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// lossGrace is how long the clients of a server that has lost its office may take their last
// packets. There is little to wait for: nothing is acknowledged any more.
const lossGrace = time.Second

// transferTimeout is how long a node that is stopped waits until another one has taken the
// leadership.
const transferTimeout = 2 * time.Second

// ownDescriptors are those that a node needs besides clients, of the process's limit: for the
// log, tables, the other nodes and the sockets for operators.
const ownDescriptors = 1200

// turnedAwayDescriptors are those of clients that are for connections beyond the bound, and for the files that a
// node with few tables has open.
const turnedAwayDescriptors = 256

// Node is a running node. End it with Shutdown, or its data directory stays locked.
type Node struct {
	config   server.Config
	log      *slog.Logger
	node     *node.Node
	opened   atomic.Pointer[node.Node] // the same, for other goroutines; nil: it is not open yet
	clients  *clients.Clients
	fronts   *fronts.Fronts
	stop     func()          // of the socket for operators
	admin    *admin.Server   // nil: there is none
	figures  metrics.Cluster // what metrics are read from
	serving  atomic.Pointer[server.Server]
	current  atomic.Pointer[server.Server] // the same, also while it follows; nil: there is none at the moment
	adjusted atomic.Pointer[server.Config] // what Adjust was given last; nil: nothing
	time     atomic.Pointer[timekeeper]    // nil: the node is not open yet
	urls     []listen.URL

	running sync.WaitGroup // but for the listener of --admin
	asked   sync.WaitGroup // the listener of --admin
	ending  context.Context
	end     context.CancelFunc
	grace   atomic.Pointer[context.Context] // of Shutdown
	failed  chan error                      // capacity 1
}

// Start starts a node, and returns when its listeners accept clients, on the leader and on the
// others. The first start of a cluster waits for all of its nodes, or until ctx ends. The
// configuration's Check must have found nothing wrong.
func Start(ctx context.Context, cfg server.Config) (*Node, error) {
	n := &Node{config: cfg, log: cfg.Logger, failed: make(chan error, 1)}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	n.ending, n.end = context.WithCancel(context.Background())
	if err := n.open(ctx, cfg.Cluster); err != nil {
		return nil, errors.Join(err, n.close())
	}
	n.running.Go(n.run)
	return n, nil
}

func (n *Node) open(ctx context.Context, s settings.Settings) error {
	if err := s.Check(n.config.Durability == journal.Durability{}); err != nil {
		return err
	}
	added := &settings.Hosts{}
	certificates, err := s.Certificates(added)
	if err != nil {
		return err
	}
	if certificates != nil {
		n.config.Reload = append(slices.Clone(n.config.Reload), server.Reloader{Name: "certificates of the cluster", Files: certificates.Files, Reload: certificates.Reload})
	}
	secured := certificates.Config()
	peers, err := s.ParsePeers()
	if err != nil {
		return err
	}
	if s.Bootstrap {
		if err := convert.Bootstrap(convert.Options{FS: n.config.FS, Dir: n.config.DataDir, Name: s.Node, Address: founding.AddressOf(nodePeers(peers), s.Node), Logger: n.log}); err != nil {
			return err
		}
	}
	listeners, err := n.config.ListenConfigs()
	if err != nil {
		return err
	}
	dialer := port.NewDialer(secured, n.log)
	o := clients.Options{Listeners: listeners, MaxBuffered: s.RelayMemory, Dialer: dialer, Logger: n.log}
	n.divide(&o)
	if n.clients, err = clients.Open(o); err != nil {
		return err
	}
	for i, address := range n.clients.Addrs() {
		u := listeners[i].URL
		u.Host = address.String()
		n.urls = append(n.urls, u)
	}
	n.fronts = fronts.New(fronts.Options{
		MaxStreams: cmp.Or(n.config.Limits.MaxConnections, limits.DefaultMaxConnections), MaxUnread: cmp.Or(s.RelayMemory, relay.DefaultMaxBuffered), Logger: n.log,
	})
	n.figures = metrics.Cluster{Status: n.Status, Figures: n.nodeFigures, Relay: n.clients.Figures, Fronts: n.fronts.Figures, Clocks: n.clocks}
	if err := n.openAdmin(); err != nil {
		return err
	}
	clock := n.newClock()
	streams := control.Streams(n.opened.Load)
	streams[clients.Magic], streams[fronts.Magic] = n.clients.Receive, n.fronts.Receive
	options := node.Options{
		Dir: n.config.DataDir, Name: s.Node, Listen: s.Listen, TLS: secured, Dialer: dialer, Election: s.Election,
		QuorumReads: s.Reads == settings.Quorum, LogKeep: s.LogKeep, SnapshotRate: s.SnapshotRate, Streams: streams, ForFronts: []string{control.StatusMagic, fronts.Magic}, Members: added.Set, Admin: n.adminAddress(), Reading: s.Reading,
		WallMs: clock.MachineMs, Logger: n.log, Fatal: n.giveUp,
	}
	options.Peers = nodePeers(peers)
	if n.node, err = node.Open(ctx, options); err != nil {
		return err
	}
	n.opened.Store(n.node)
	n.running.Go(n.advise)
	n.clients.Follow(n.node)
	if n.stop, err = control.Serve(n.config.DataDir, n.reporter(), control.Answers{Unready: n.health, BackedUp: n.backedUp}, n.log); err != nil {
		return fmt.Errorf("the socket for operators of the cluster: %w", err)
	}
	n.keepTime(clock)
	return nil
}

func nodePeers(peers []settings.Peer) (all []node.Peer) {
	for _, p := range peers {
		all = append(all, node.Peer{Name: p.Name, Address: p.Address})
	}
	return all
}

// divide bounds the connections that are held and passed on by what the process may open: each of the latter
// takes two descriptors.
func (n *Node) divide(o *clients.Options) {
	if clients, known := descriptorsForClients(); known {
		bounds := &sockets.DescriptorBounds{Clients: clients, Loopback: clients, Logger: n.log}
		o.Bound = bounds.Listener
	}
	o.MaxConnections = passable(n.config.Limits.MaxConnections)
}

func descriptorsForClients() (clients int, known bool) {
	limit, known := sockets.DescriptorLimit()
	return limit - min(ownDescriptors, limit/2), known
}

// passable is how many connections are held and passed on, given Limits.MaxConnections.
func passable(most int) int {
	if clients, known := descriptorsForClients(); known {
		return passableWith(clients, most)
	}
	return most
}

// passableWith is passable with so many descriptors for clients. Some of these are left, so that a connection
// beyond hears why it is turned away, and is not closed because of its descriptor.
func passableWith(clients, most int) int {
	if can := max(clients-turnedAwayDescriptors, clients/2) / 2; most == 0 || most > can {
		return can
	}
	return most
}

// run runs one server after the other.
func (n *Node) run() {
	defer failstop.End(n.log, "the servers of a node")
	for n.ending.Err() == nil {
		if err := n.serve(); err != nil {
			if n.ending.Err() == nil {
				n.fail(err)
			}
			return
		}
	}
}

// fail notes why the node cannot serve clients ever again, unless it is known already.
func (n *Node) fail(err error) {
	select {
	case n.failed <- err:
	default:
	}
}

// giveUp is called when the node itself cannot go on: it ends the process, unless the cluster has
// no place for the node, whose disk is well.
func (n *Node) giveUp(err error) {
	if errors.Is(err, node.ErrRemoved) || errors.Is(err, node.ErrOtherCluster) || errors.Is(err, node.ErrPeers) {
		n.fail(err)
		return
	}
	n.log.Error("giving up: this node cannot go on", "error", err)
	os.Exit(1)
}

// serve runs a server for one office.
func (n *Node) serve() error {
	log := n.node.Log(n.ending)
	cfg := n.config
	cfg.Replicated = &server.Replicated{Log: log, Listen: n.clients.Listen, Fronts: n.fronts.Serve, Admin: n.admin, Unready: n.unready, Cluster: &n.figures, Standby: n.standBy, Clock: n.time.Load().awaitClock, Reporter: n.reporter()}
	ctx, cancel := context.WithCancel(n.ending)
	defer cancel()
	n.running.Go(func() {
		defer failstop.End(n.log, "the watcher of a node's office")
		n.cancelWhenLost(ctx, cancel, log)
	})
	defer n.current.Store(nil)
	s, err := server.StartContext(ctx, cfg)
	if errors.Is(err, node.ErrReplaced) {
		return nil // the node says so
	}
	if errors.Is(err, server.ErrClockBehind) {
		return n.decline(err)
	}
	if errors.Is(err, journal.ErrLost) || err != nil && log.Office() != nil && lost(log.Office()) {
		n.log.Warn("this node has lost its office before its server could serve clients", "reason", err)
		return n.leave(log.Office())
	}
	if err != nil {
		return err
	}
	n.serving.Store(s)
	select {
	case <-log.Office().Lost():
	case <-s.Lost():
	case <-n.ending.Done():
		n.retire()
		return s.Shutdown(*n.grace.Load())
	}
	n.retire()
	grace, stop := context.WithTimeout(context.Background(), lossGrace)
	defer stop()
	if err := s.Shutdown(grace); err != nil {
		n.log.Warn("the server of a lost office has ended", "error", err)
	}
	return n.leave(log.Office())
}

var errNoWrites = errors.New("its log takes no writes, although no other node leads yet")

// leave is called when a server has ended because its log takes no writes. The office may last for longer,
// above all while the leadership is being given away: a server that was started in it would end
// again at its first write.
func (n *Node) leave(o *node.Office) error {
	if o == nil || lost(o) {
		return nil
	}
	return n.decline(errNoWrites)
}

// declinePause is how long a node that must not lead waits before it may lead again.
const declinePause = time.Second

// decline gives the leadership away because of why, which may pass.
func (n *Node) decline(why error) error {
	n.log.Warn("giving the leadership away", "reason", why)
	ctx, cancel := context.WithTimeout(n.ending, transferTimeout)
	defer cancel()
	if err := n.node.Transfer(ctx, 0); err != nil {
		n.log.Warn("no other node has taken the leadership", "error", err)
	}
	select {
	case <-time.After(declinePause):
	case <-n.ending.Done():
	}
	return nil
}

// cancelWhenLost ends a start that takes longer than the office: it may wait for the clock, for
// example.
func (n *Node) cancelWhenLost(ctx context.Context, cancel func(), log *node.Log) {
	for {
		changed := n.node.Changes()
		if o := log.Office(); o != nil {
			select {
			case <-o.Lost():
				cancel()
			case <-ctx.Done():
			}
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func lost(o *node.Office) bool {
	select {
	case <-o.Lost():
		return true
	default:
		return false
	}
}

// standBy notes a server that follows, and serves clients when the node leads.
func (n *Node) standBy(s *server.Server) {
	n.current.Store(s)
	for c := n.adjusted.Load(); c != nil; { // Adjust may be called meanwhile
		s.Adjust(*c)
		now := n.adjusted.Load()
		if now == c {
			return
		}
		c = now
	}
}

// retire forgets the server, which ends.
func (n *Node) retire() {
	n.serving.Store(nil)
	n.current.Store(nil)
}

// Adjust is server.Server.Adjust for the servers of this node, whether it leads now or later. One
// goroutine at a time calls it.
func (n *Node) Adjust(c server.Config) {
	n.adjusted.Store(&c)
	n.clients.SetMaxConnections(passable(c.Limits.MaxConnections))
	if s := n.current.Load(); s != nil {
		s.Adjust(c)
	}
}

// Reload is server.Server.Reload for this node, which also reads again the certificates of the
// cluster. A server that is about to start reads everything anyway.
func (n *Node) Reload() error {
	if s := n.current.Load(); s != nil {
		return s.Reload()
	}
	return nil
}

// backedUp has the audit log note a backup.
func (n *Node) backedUp(dir string, done backup.Progress, err error) {
	if s := n.current.Load(); s != nil {
		s.BackedUp(dir, done, err)
	}
}

// Server is the server that serves clients now; nil: this node does not lead.
func (n *Node) Server() *server.Server { return n.serving.Load() }

// Status is what the node knows of its cluster. One that waits for the others of a cluster that is
// to be founded knows its own name.
func (n *Node) Status() node.Status {
	if open := n.opened.Load(); open != nil {
		return open.Status()
	}
	return node.Status{Name: n.config.Cluster.Node, Role: node.Candidate}
}

// URLs are those of the listeners, with the ports that they listen on.
func (n *Node) URLs() []listen.URL { return n.urls }

// ClusterAddr is where the node listens for the others.
func (n *Node) ClusterAddr() net.Addr { return n.node.Addr() }

// Failed gives the error that keeps the node from serving clients ever again; the caller
// shuts it down.
func (n *Node) Failed() <-chan error { return n.failed }

// Shutdown gives the leadership away, if the node has it and another node can take it, stops
// the server as server.Server.Shutdown does, and leaves the cluster until the next start.
func (n *Node) Shutdown(ctx context.Context) error {
	if n.node.Status().Role == node.Leader {
		giving, cancel := context.WithTimeout(ctx, transferTimeout)
		if err := n.node.Transfer(giving, 0); err != nil && !errors.Is(err, consensus.ErrAlone) {
			n.log.Warn("no other node has taken the leadership: the cluster elects a leader when this node has ended", "error", err)
		}
		cancel()
	}
	n.grace.Store(&ctx)
	n.end()
	n.running.Wait()
	return n.close()
}

func (n *Node) close() error {
	n.end()
	if n.stop != nil {
		n.stop()
	}
	var errs []error
	if n.admin != nil {
		grace, cancel := context.WithTimeout(context.Background(), lossGrace)
		errs = append(errs, n.admin.Close(grace))
		cancel()
		n.asked.Wait()
	}
	if n.clients != nil {
		errs = append(errs, n.clients.Close())
	}
	if n.node != nil {
		errs = append(errs, n.node.Close())
	}
	return errors.Join(errs...)
}
