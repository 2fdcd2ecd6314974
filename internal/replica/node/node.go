package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
	"github.com/holdfast-mqtt/holdfast/internal/replica/consensus"
	"github.com/holdfast-mqtt/holdfast/internal/replica/lag"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
	"github.com/holdfast-mqtt/holdfast/internal/replica/snapshot"
	"github.com/holdfast-mqtt/holdfast/internal/replica/transport"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// Defaults and bounds of Options.
const (
	DefaultElection = time.Second
	MinElection     = 50 * time.Millisecond // only tests go so low
	MaxElection     = time.Minute
	DefaultLogKeep  = 256 << 20
	// DefaultSnapshotRate is in bytes per second.
	DefaultSnapshotRate = 64 << 20
	MinLogKeep          = 1 << 20
	maxLogKeep          = 1 << 60
	// MaxPeers bounds the nodes of a cluster.
	MaxPeers = 9
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
	// Election is the election timeout; 0: DefaultElection.
	Election time.Duration
	// QuorumReads: each read asks a quorum whether this node still leads, instead of relying
	// on the lease, and so on clocks that run nearly at the same rate.
	QuorumReads bool
	// LogKeep is how many bytes of its log the node keeps on the disk at most for followers
	// that are behind; half of it also if all that answer have it. More stays while the
	// database does not have the rows in tables, up to twice as much on a follower. One that
	// lacks entries which the leader has dropped gets a snapshot, during which the leader keeps
	// up to four times as much. 0: DefaultLogKeep.
	LogKeep int64
	// SnapshotRate is how many bytes of a snapshot the leader sends in a second at most; 0:
	// DefaultSnapshotRate.
	SnapshotRate int64
	// Streams are called with connections of other nodes that begin with their key, see
	// port.Port.Handle.
	Streams map[string]func(net.Conn)
	Logger  *slog.Logger // nil: slog.Default
	// Fatal is called once, from any goroutine, when the node cannot go on: its disk has
	// failed. nil: it logs a line and ends the process.
	Fatal func(error)

	unsafeReads bool // tests: leaders answer without a lease
}

// Node is a node of a cluster. Its methods are safe for concurrent use.
type Node struct {
	o         Options
	began     time.Time
	lock      *datadir.Lock
	port      *port.Port
	transport *transport.Transport
	log       *raftlog.Log
	self      atomic.Pointer[identity]
	addresses map[uint64]string // of the members' ports
	conf      *raftpb.ConfState
	fsyncs    *histogram.Histogram

	core     *consensus.Core // the loop's
	received chan *raftpb.Message
	stored   chan *raftpb.Message
	calls    chan func()
	ended    chan struct{} // closed when the loop has ended
	lost     atomic.Pointer[[]uint64]
	needed   atomic.Uint64 // nodes that answer have the entries up to this one; the loop writes it
	behind   lag.Meter     // the loop's, but for Behind
	given    atomic.Uint64 // Replay has given the journal the entries up to this one
	leaders  atomic.Int64  // how many leaders this node has learned of
	full     atomic.Bool   // the disk has no room for a leader's entries; the storer writes it
	generous atomic.Bool   // a node gets a snapshot, or has just got one; the loop writes it

	// The loop's.
	proposed *proposal // under way; nil: none
	asking   *question // a round of AskQuorum; nil: none is under way
	wants    *question // readers that wait for the next one; nil: none do

	storing   storing
	snapshots snapshots

	mu        lockrank.Mutex[lockrank.ReplicaNode]
	moved     sync.Cond        // on mu: entries were committed, or the office has changed
	committed uint64           // guarded by mu: index of the last entry that is known to be committed
	office    *Office          // guarded by mu: nil: this node is not a leader that is ready
	view      consensus.Office // guarded by mu
	changed   chan struct{}    // guarded by mu: closed at the next change of view or office

	checkpoint func(dir string, copies bool) error // guarded by mu: see SetCheckpoint; nil: no journal is open
	noRoom     func() bool                         // guarded by mu: makes room on the disk, of the journal that is open; nil: none is
	replacing  bool                                // guarded by mu: the database is being replaced, so no journal may be opened
	generation uint64                              // guarded by mu: how often it was

	failure sync.Once
	closing sync.Once
	ending  context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

// ErrNotOurs: the data directory is not this node's.
var ErrNotOurs = errors.New("the data directory is not this node's")

// ErrStopped: the node is being closed.
var ErrStopped = errors.New("the node is being stopped")

// Open starts a node. The first start of a cluster waits for all of its nodes, or until ctx
// ends. It fails with port.ErrNeedsTLS, ErrOtherCluster, ErrNotOurs, raftlog.ErrDamaged or
// datadir.ErrLocked, or with what is wrong in words.
func Open(ctx context.Context, o Options) (*Node, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	n := &Node{
		o: o, began: time.Now(), fsyncs: histogram.New(1000), addresses: map[uint64]string{},
		received: make(chan *raftpb.Message, 256), stored: make(chan *raftpb.Message, 64), calls: make(chan func()),
		ended: make(chan struct{}), changed: make(chan struct{}),
	}
	n.moved.L = &n.mu
	n.storing.wake = make(chan struct{}, 1)
	n.snapshots.receiving = make(chan struct{}, 1)
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
	return checkPeers(o.Name, o.Peers)
}

func (n *Node) dir() string { return n.o.FS.PathJoin(n.o.Dir, Dir) }

// Dir is the directory in a data directory that has what a cluster needs of a node. There is
// none if the data directory was never a node's.
const Dir = "cluster"

// open opens everything from the bottom up.
func (n *Node) open(ctx context.Context) (err error) {
	if n.lock, err = datadir.Acquire(n.o.FS, n.dir()); err != nil {
		return err
	}
	if err := n.identify(); err != nil {
		return err
	}
	listen := n.o.Listen
	for _, p := range n.o.Peers {
		if p.Name == n.o.Name {
			listen = cmp.Or(listen, p.Address)
		}
	}
	if n.port, err = port.Listen(port.Options{Address: listen, TLS: n.o.TLS, Logger: n.o.Logger}); err != nil {
		return err
	}
	n.port.Handle(foundMagic, n.tell)
	n.port.Serve()
	if err := n.found(ctx); err != nil {
		return err
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
	self, err := readIdentity(n.o.FS, n.dir())
	if err != nil {
		return err
	}
	if self == nil {
		self = &identity{Format: identityFormat, Name: n.o.Name, ID: newID()}
		if err := self.write(n.o.FS, n.dir()); err != nil {
			return err
		}
	}
	if self.Name != n.o.Name {
		return fmt.Errorf("%w: %s is that of node %q, and this is to be node %q; give the node the name or the directory that it had", ErrNotOurs, n.o.Dir, self.Name, n.o.Name)
	}
	n.self.Store(self)
	return nil
}

// found makes this node one of the founders of its cluster, at the first start.
func (n *Node) found(ctx context.Context) error {
	self := *n.self.Load()
	if self.Cluster == 0 {
		founders, err := n.askAll(ctx)
		if err != nil {
			return err
		}
		// A log that is there was made by a start that did not get to its end.
		raft := n.o.FS.PathJoin(n.dir(), "raft")
		if err := n.o.FS.RemoveAll(raft); err != nil {
			return err
		}
		if err := raftlog.Create(n.o.FS, raft, founded); err != nil {
			return err
		}
		self.Members, self.Cluster = founders, clusterOf(founders)
		if err := self.write(n.o.FS, n.dir()); err != nil {
			return err
		}
		n.self.Store(&self)
		n.o.Logger.Info("a cluster was founded", "cluster", self.Cluster, "nodes", peerNames(n.o.Peers))
	}
	var names []string
	for _, m := range self.Members {
		names = append(names, m.Name)
		for _, p := range n.o.Peers {
			if p.Name == m.Name {
				n.addresses[uint64(m.ID)] = p.Address
			}
		}
	}
	if !slices.Equal(names, peerNames(n.o.Peers)) {
		return fmt.Errorf("the cluster has the nodes %v, and the list of peers has %v: a list cannot change a cluster; name the nodes that it has", names, peerNames(n.o.Peers))
	}
	return nil
}

// founded is the entry with which every cluster begins. The database of a new node has it.
var founded = raftlog.Position{Index: 1, Term: 1}

// openLog opens the Raft log, with what the database says.
func (n *Node) openLog() (err error) {
	applied, conf, err := n.readApplied()
	if err != nil {
		return err
	}
	if conf == nil {
		conf = &raftpb.ConfState{}
		for _, m := range n.self.Load().Members {
			conf.Voters = append(conf.Voters, uint64(m.ID))
		}
		slices.Sort(conf.Voters)
	}
	n.conf, n.committed = conf, applied.Index
	defer func() {
		if err == nil {
			n.log.SetSnapshots(n.offerSnapshot)
		}
	}()
	n.log, err = raftlog.Open(raftlog.Options{
		FS: n.o.FS, Dir: n.o.FS.PathJoin(n.dir(), "raft"), Applied: applied, Conf: conf, Fsyncs: n.fsyncs,
		MemoryBytes: min(raftlog.DefaultMemoryBytes, n.o.LogKeep), NoRoom: n.makeRoom,
	})
	return err
}

// appliedKey is the row of the database that goes with journal.AppliedKey: the term of that entry, 8
// bytes big-endian, and the membership that it leaves, as the library encodes it.
var appliedKey = []byte("m|raft")

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

// readApplied reads which entry the database ends with.
func (n *Node) readApplied() (at raftlog.Position, conf *raftpb.ConfState, err error) {
	at, conf, err = readDatabase(n.o.FS, n.o.Dir)
	if err != nil || conf != nil {
		return at, conf, err
	}
	used, err := wal.FirstUsed(n.o.FS, n.o.Dir) // by a server by itself: a node's log is elsewhere
	if err == nil && (at.Index != 0 || used != "") {
		err = fmt.Errorf("%w: %s has the data of a server that was no node; start this node with a new directory", ErrNotOurs, n.o.Dir)
	}
	return founded, nil, err
}

// readDatabase reads which entry a database ends with, and the membership that goes with it; nil:
// it is no node's, or there is none. The index is 0 if nothing was ever applied.
func readDatabase(fsys journal.FS, dir string) (at raftlog.Position, conf *raftpb.ConfState, err error) {
	desc, err := pebble.Peek(dir, fsys)
	if err != nil || !desc.Exists {
		return at, nil, err
	}
	lock, err := datadir.Acquire(fsys, dir)
	if err != nil {
		return at, nil, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	db, err := pebblefile.OpenReadOnly(fsys, dir, lock, true)
	if err != nil {
		return at, nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	index, err := readRow(db, journal.AppliedKey)
	if err != nil {
		return at, nil, err
	}
	if len(index) == 8 {
		at.Index = binary.BigEndian.Uint64(index)
	}
	row, err := readRow(db, appliedKey)
	switch {
	case err != nil || row == nil:
		return at, nil, err
	case len(index) != 8 || len(row) < 8:
		return at, nil, fmt.Errorf("the row %s or %s in %s is too short", journal.AppliedKey, appliedKey, dir)
	}
	at.Term, conf = binary.BigEndian.Uint64(row), &raftpb.ConfState{}
	return at, conf, proto.Unmarshal(row[8:], conf)
}

// readRow reads a row; nil: there is none.
func readRow(db *pebble.DB, key []byte) ([]byte, error) {
	v, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return append([]byte{}, v...), closer.Close()
}

// unacknowledged election timeouts without a sign of the other node end a connection: by then
// the nodes have given each other up, and the messages on their way are old.
const unacknowledged = 2

// start starts the consensus and the goroutines.
func (n *Node) start() (err error) {
	self := n.self.Load()
	n.core, err = consensus.New(consensus.Options{ID: uint64(self.ID), Log: n.log, Applied: n.committed, Election: n.o.Election, Logger: n.o.Logger}, n.now())
	if err != nil {
		return err
	}
	n.transport, err = transport.New(transport.Options{
		Cluster: uint64(self.Cluster), ID: uint64(self.ID), Peers: n.addresses, Port: n.port, Logger: n.o.Logger,
		Receive: func(m *raftpb.Message) {
			select {
			case n.received <- m:
			case <-n.ending.Done():
			}
		},
		Unreachable: n.unreachable, Unacknowledged: unacknowledged * n.o.Election,
	})
	if err != nil {
		return err
	}
	n.port.Handle(snapshotMagic, n.receiveSnapshot)
	for magic, h := range n.o.Streams {
		n.port.Handle(magic, h)
	}
	n.port.Complete()
	n.running.Go(n.run)
	n.running.Go(n.store)
	return nil
}

// now is the node's monotonic clock.
func (n *Node) now() time.Duration { return time.Since(n.began) }

// Name is the node's name, and ID its ID.
func (n *Node) Name() string { return n.o.Name }

// ID is the node's ID.
func (n *Node) ID() ID { return n.self.Load().ID }

// Addr is the address that the node listens on for the other nodes.
func (n *Node) Addr() net.Addr { return n.port.Addr() }

// Dial connects to another member's port, given its ID, and says what about; that node's
// Options.Streams have to know magic.
func (n *Node) Dial(ctx context.Context, to ID, magic string) (net.Conn, error) {
	address, ok := n.addresses[uint64(to)]
	if !ok {
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
	n.wakeAll()
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

// do has the loop call f, and waits until it has. False: the node has ended.
func (n *Node) do(f func()) bool {
	done := make(chan struct{})
	select {
	case n.calls <- func() { f(); close(done) }:
		<-done
		return true
	case <-n.ended:
		return false
	}
}

// guard is to be deferred by each goroutine of the node.
func (n *Node) guard(where string) { failstop.End(n.o.Logger, where) }
