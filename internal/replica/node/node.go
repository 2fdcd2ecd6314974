package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/replica/consensus"
	"github.com/holdfast-mqtt/holdfast/internal/replica/founding"
	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/lag"
	"github.com/holdfast-mqtt/holdfast/internal/replica/lease"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
	"github.com/holdfast-mqtt/holdfast/internal/replica/snapshot"
	"github.com/holdfast-mqtt/holdfast/internal/replica/transport"
)

// Defaults and bounds of Options.
const (
	DefaultElection = time.Second
	MinElection     = 50 * time.Millisecond // only tests go so low
	MaxElection     = time.Minute
	DefaultLogKeep  = 256 << 20
	// DefaultSnapshotRate is in bytes per second.
	DefaultSnapshotRate = 32 << 20
	MinLogKeep          = 1 << 20
	maxLogKeep          = 1 << 60
	// MaxPeers bounds the nodes of a cluster.
	MaxPeers = members.Max
)

// Options of Open.
type Options struct {
	Dir string     // the server's data directory
	FS  journal.FS // nil: the machine's
	// Name of this node, which is one of Peers. Listen is where it listens for the others,
	// HOST:PORT; empty: at its address in Peers.
	Name   string
	Peers  []Peer
	Listen string
	// TLS has the node's certificate, and the CA of the nodes in both RootCAs and ClientCAs.
	// nil: without TLS, which only loopback addresses allow.
	TLS *tls.Config
	// Dialer is how this node connects to the others. nil: one of its own, with TLS.
	Dialer *port.Dialer
	// Election is the election timeout; 0: DefaultElection.
	Election time.Duration
	// QuorumReads: each read asks a quorum whether this node still leads, instead of relying
	// on the lease, and so on clocks that run nearly at the same rate.
	QuorumReads bool
	// LogKeep is how many bytes of its log the node keeps on the disk at most for followers
	// that are behind; half of it also if all that answer have it. More stays while the
	// database does not have the rows in tables, up to twice as much on a follower, and 16 MiB at
	// least. One that lacks entries which the leader has dropped gets a snapshot, during which the
	// leader keeps up to four times as much, and 64 MiB at least. 0: DefaultLogKeep.
	LogKeep int64
	// SnapshotRate is how many bytes of a snapshot the leader sends in a second at most, or four times as
	// many if its log would be too short otherwise; 0: DefaultSnapshotRate.
	SnapshotRate int64
	// Members is called with the addresses of the other nodes whenever they change: by the
	// goroutine of Open, and by others that must not be held up. nil: nothing happens.
	Members func(addresses []string)
	// Streams are called with connections of other nodes that begin with their key, see
	// port.Port.Handle.
	Streams map[string]func(net.Conn)
	// ForFronts are the keys of Streams for which fronts may connect, too.
	ForFronts []string
	// WallMs is the machine's wall clock in ms since 1970, for the other nodes' Status; nil: time.Now.
	WallMs func() int64
	// Admin is HOST:PORT of this node's console, for the other nodes' Status; empty: it has none.
	Admin  string
	Logger *slog.Logger // nil: slog.Default
	// Reading is that of the log (package raftlog). nil: nothing happens.
	Reading func(bytes int64)
	// Fatal is called once, from any goroutine, when the node cannot go on: its disk has
	// failed. nil: it logs a line and ends the process.
	Fatal func(error)

	unsafeReads bool // tests: leaders answer without a lease
}

// Node is a node of a cluster. Its methods are safe for concurrent use.
type Node struct {
	o         Options
	began     time.Time
	instance  ID // of this start
	lock      *datadir.Lock
	port      *port.Port
	transport *transport.Transport
	log       *raftlog.Log
	self      atomic.Pointer[identity.Identity]
	roster    atomic.Pointer[roster] // see setRoster
	fsyncs    *histogram.Histogram
	changing  chan struct{} // has a place for the one change of the members that is under way

	deciding lockrank.Mutex[lockrank.Deciding]
	core     *consensus.Core // guarded by deciding
	lost     atomic.Pointer[[]uint64]
	needed   atomic.Uint64               // nodes that answer have the entries up to this one; written with deciding held
	behind   lag.Meter                   // guarded by deciding, but for Behind
	given    atomic.Uint64               // Replay has given the journal the entries up to this one
	leaders  atomic.Int64                // how many leaders this node has learned of
	full     atomic.Bool                 // the disk has no room for a leader's entries; the storer writes it
	unfit    atomic.Pointer[map[ID]bool] // see SetUnfit
	generous atomic.Bool                 // a node gets a snapshot, or has just got one; written with deciding held

	// guarded by deciding
	proposed *proposal              // under way; nil: none
	change   *proposal              // of the members, under way; nil: none
	saidVote time.Duration          // when the log may say next that a learner gets no vote, by now
	led      time.Duration          // when a leader was known last, by now
	levels   map[ID]*members.Levels // announced by nodes, of which each has a connection to this one
	hurrying hurrying
	ungiven  int           // bytes of entries that are committed since Replay was woken
	giveAt   time.Duration // when it is woken for the next one, by now
	asking   *question     // a round of AskQuorum; nil: none is under way
	wants    *question     // readers that wait for the next one; nil: none do

	storing   storing
	snapshots snapshots

	mu        lockrank.Mutex[lockrank.ReplicaNode]
	moved     sync.Cond        // on mu: entries were committed, or the office has changed
	committed uint64           // guarded by mu: index of the last entry that is known to be committed
	history   members.History  // guarded by mu: the members up to that entry
	office    *Office          // guarded by mu: nil: this node is not a leader that is ready
	view      consensus.Office // guarded by mu
	changed   chan struct{}    // guarded by mu: closed at the next change of view or office

	checkpoint func(dir string, copies bool) error // guarded by mu: journal.LogOptions.Copy; nil: there is no journal
	tableSize  func() (tables int, bytes int64)    // guarded by mu: journal.LogOptions.TableSize; nil: there is no journal
	barrier    func()                              // guarded by mu: see SetJournal; nil: no journal is open
	commits    *Office                             // guarded by mu: in which the journal that is open commits batches; nil: in none
	noRoom     func() bool                         // guarded by mu: makes room on the disk, of the journal that is open; nil: none is
	replacing  bool                                // guarded by mu: the database is being replaced, so no journal may be opened
	generation uint64                              // guarded by mu: how often it was

	failure sync.Once
	closing sync.Once
	ending  context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

// ErrStopped: the node is being closed.
var ErrStopped = errors.New("the node is being stopped")

// Open starts a node. The first start of a cluster waits for all of its nodes, that of a node
// which joins one until it was added there, or until ctx ends. It fails with port.ErrNeedsTLS,
// ErrOtherCluster, ErrRemoved, ErrNotOurs, members.ErrLevel, raftlog.ErrDamaged or datadir.ErrLocked, or with
// what is wrong in words.
func Open(ctx context.Context, o Options) (*Node, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	n := &Node{
		o: o, began: time.Now(), instance: members.NewID(), fsyncs: histogram.New(1000), changing: make(chan struct{}, 1),
		changed: make(chan struct{}), levels: map[ID]*members.Levels{},
	}
	n.moved.L = &n.mu
	n.SetUnfit(nil)
	n.storing.wake = make(chan struct{}, 1)
	n.snapshots.receiving = make(chan struct{}, 1)
	n.hurrying.timer = time.AfterFunc(time.Hour, n.hurry)
	n.hurrying.timer.Stop()
	n.ending, n.end = context.WithCancel(context.Background())
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// check checks the options and sets the defaults.
func (o *Options) check() error {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.WallMs == nil {
		o.WallMs = func() int64 { return time.Now().UnixMilli() }
	}
	if o.Fatal == nil {
		logger := o.Logger
		o.Fatal = func(err error) {
			logger.Error("giving up: this node cannot go on", "error", err)
			os.Exit(1)
		}
	}
	o.Election = cmp.Or(o.Election, DefaultElection)
	o.SnapshotRate = cmp.Or(o.SnapshotRate, DefaultSnapshotRate)
	o.LogKeep = min(cmp.Or(o.LogKeep, DefaultLogKeep), maxLogKeep)
	switch {
	case o.Election < MinElection || o.Election > MaxElection:
		return fmt.Errorf("an election timeout of %v: want %v to %v", o.Election, MinElection, MaxElection)
	case o.LogKeep < MinLogKeep:
		return fmt.Errorf("%d bytes of the log are too few: keep at least %d", o.LogKeep, MinLogKeep)
	case len(o.Peers) > MaxPeers:
		return fmt.Errorf("%d nodes: a cluster has at most %d", len(o.Peers), MaxPeers)
	}
	return founding.CheckPeers(o.Name, o.Peers)
}

func (n *Node) dir() string { return n.o.FS.PathJoin(n.o.Dir, Dir) }

// open opens everything from the bottom up.
func (n *Node) open(ctx context.Context) (err error) {
	if n.lock, err = datadir.Acquire(n.o.FS, n.dir()); err != nil {
		return err
	}
	if err := n.identify(); err != nil {
		return err
	}
	listen := cmp.Or(n.o.Listen, n.o.peerAddress(n.o.Name))
	if n.port, err = port.Listen(port.Options{Address: listen, TLS: n.o.TLS, Dialer: n.o.Dialer, Logger: n.o.Logger}); err != nil {
		return err
	}
	n.port.Handle(founding.Magic, n.tell)
	n.port.Serve()
	if self := n.self.Load(); self.Cluster == 0 {
		first := founding.Start{FS: n.o.FS, DataDir: n.o.Dir, NodeDir: n.dir(), Self: *self, Peers: n.o.Peers, Port: n.port, Logger: n.o.Logger}
		self, err = first.Begin(ctx)
		if err != nil {
			return err
		}
		n.self.Store(self)
	}
	if err := n.finishInstall(); err != nil {
		return err
	}
	if err := n.openLog(); err != nil {
		return err
	}
	return n.start()
}

// identify reads who this node is, or decides it.
func (n *Node) identify() error {
	self, err := identity.Read(n.o.FS, n.dir())
	if err != nil {
		return err
	}
	if self == nil {
		self = &identity.Identity{Name: n.o.Name, ID: members.NewID()}
		if err := self.Write(n.o.FS, n.dir()); err != nil {
			return err
		}
	}
	switch {
	case self.Name != n.o.Name:
		return fmt.Errorf("%w: %s is that of node %q, and this is to be node %q; give the node the name or the directory that it had", ErrNotOurs, n.o.Dir, self.Name, n.o.Name)
	case self.Recovering:
		return fmt.Errorf("%w: \"holdfast cluster recover\" has not completed in %s; run it again", ErrNotOurs, n.o.Dir)
	}
	n.self.Store(self)
	return nil
}

// openLog opens the Raft log, with what the database says.
func (n *Node) openLog() error {
	self := n.self.Load()
	applied, list, err := self.Applied(n.o.FS, n.o.Dir)
	if err != nil {
		return err
	}
	if list.WasRemoved(self.ID) {
		return founding.Removed(self, "its log")
	}
	if err := members.CheckLevel(list.Level); err != nil {
		return err
	}
	n.committed = applied.Index
	n.history.Reset(applied.Index, list)
	n.setRoster(list)
	n.sayDifferences()
	datadir.NewSpace(n.o.FS, n.o.Dir, 0, n.o.Logger).FreeForStart() // the log begins a segment
	n.log, err = raftlog.Open(raftlog.Options{
		FS: n.o.FS, Dir: self.LogDir(n.o.FS, n.dir()), Applied: applied, Conf: list.ConfState(), Fsyncs: n.fsyncs, Reading: n.o.Reading,
		MemoryBytes: min(raftlog.DefaultMemoryBytes, n.o.LogKeep), NoRoom: n.makeRoom,
	})
	if err == nil {
		n.log.SetSnapshots(n.offerSnapshot)
	}
	return err
}

// finishInstall completes the installation of a snapshot that was interrupted, and removes
// what is left of others.
func (n *Node) finishInstall() error {
	lock, err := datadir.Acquire(n.o.FS, n.o.Dir)
	if err != nil {
		return err
	}
	installed, err := snapshot.Finish(n.o.FS, n.o.Dir, n.dir())
	if installed && err == nil {
		n.o.Logger.Info("the data of a leader that had arrived were put in their place", "node", n.o.Name)
	}
	return errors.Join(err, n.o.FS.RemoveAll(snapshot.CopyDir(n.o.FS, n.dir())), lock.Close())
}

// unacknowledged election timeouts without a sign of the other node end a connection: by then
// the nodes have given each other up, and the messages on their way are old.
const unacknowledged = 2

// start starts the consensus and the goroutines.
func (n *Node) start() (err error) {
	n.deciding.Lock() // messages of other nodes wait until everything is there
	defer n.deciding.Unlock()
	self := n.self.Load()
	n.core, err = consensus.New(consensus.Options{ID: uint64(self.ID), Log: n.log, Applied: n.committed, Election: n.o.Election, Logger: n.o.Logger}, n.now())
	if err != nil {
		return err
	}
	n.transport, err = transport.New(transport.Options{
		Cluster: uint64(self.Cluster), ID: uint64(self.ID), Peers: n.roster.Load().addresses, Port: n.port, Name: n.name, Logger: n.o.Logger.With("node", n.o.Name),
		Address: cmp.Or(n.roster.Load().addresses[uint64(self.ID)], n.o.peerAddress(n.o.Name)), Level: members.Own.Announce(), Admit: n.admit,
		Receive:     n.receive,
		Unreachable: n.unreachable, Unacknowledged: unacknowledged * n.o.Election,
	})
	if err != nil {
		return err
	}
	n.port.Handle(snapshotMagic, n.receiveSnapshot)
	for magic, h := range n.o.Streams {
		if slices.Contains(n.o.ForFronts, magic) {
			n.port.HandleFronts(magic, h)
		} else {
			n.port.Handle(magic, h)
		}
	}
	n.port.Complete()
	n.running.Go(n.run)
	n.running.Go(n.store)
	n.running.Go(n.watchRemoval)
	return nil
}

// now is the node's monotonic clock.
func (n *Node) now() time.Duration { return time.Since(n.began) }

// moment is now by the wall clock, too.
func (n *Node) moment() lease.Moment {
	t := time.Now()
	return lease.Moment{Monotonic: t.Sub(n.began), Wall: time.Duration(t.UnixNano())}
}

// Name is the node's name, and ID its ID.
func (n *Node) Name() string { return n.o.Name }

// ID is the node's ID.
func (n *Node) ID() ID { return n.self.Load().ID }

// Addr is the address that the node listens on for the other nodes.
func (n *Node) Addr() net.Addr { return n.port.Addr() }

// Dial connects to another member's port, given its ID, and says what about; that node's
// Options.Streams have to know magic.
func (n *Node) Dial(ctx context.Context, to ID, magic string) (net.Conn, error) {
	address := n.roster.Load().addresses[uint64(to)]
	if address == "" {
		return nil, fmt.Errorf("node %v is not a member", to)
	}
	return n.port.Dial(ctx, address, magic)
}

// fail ends the node.
func (n *Node) fail(err error) {
	n.failure.Do(func() {
		n.end()
		n.wakeAll()
		n.o.Fatal(fmt.Errorf("node %s: %w", n.o.Name, err))
	})
}

// Close stops the node. Its server must have ended, or end now: what it commits fails with
// ErrStopped.
func (n *Node) Close() (err error) {
	n.closing.Do(func() { err = n.close() })
	return err
}

func (n *Node) close() error {
	n.end()
	n.deciding.Lock() // a goroutine that acquires it from now on sees that the node has ended
	n.wakeAll()
	n.hurrying.timer.Stop()
	n.deciding.Unlock()
	if n.transport != nil {
		n.transport.Close()
	}
	var errs []error
	if n.port != nil {
		errs = append(errs, n.port.Close())
	}
	n.running.Wait()
	if n.log != nil {
		errs = append(errs, n.log.Close())
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	return errors.Join(errs...)
}

// wakeAll wakes what waits for the node, which has ended.
func (n *Node) wakeAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.office != nil {
		n.office.close()
		n.office = nil
	}
	n.moved.Broadcast()
}

// guard is to be deferred by each goroutine of the node.
func (n *Node) guard(where string) { failstop.End(n.o.Logger, where) }
