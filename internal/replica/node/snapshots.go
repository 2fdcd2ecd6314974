package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
	"github.com/holdfast-mqtt/holdfast/internal/replica/snapshot"
)

// Snapshots
//
// When a node lacks entries that the leader's log does not have any more, the consensus on the
// leader asks for a snapshot and then has a message for that node. It is not sent as the others:
// a goroutine makes a copy of the database, which has that entry and perhaps later ones, and
// streams it (package snapshot); the message, with the copy's last entry, is a part of the
// stream. The other node gives its consensus the message when it has the files. If that wants
// the snapshot, it asks for it to be stored, in the order of its entries, and the storer puts
// the database in the place of the old one.
//
// The leader sends one snapshot at a time, and a node receives one at a time.

const (
	snapshotMagic = "holdfast snapsh1"
	// snapshotPause is how long the leader waits after a snapshot that has failed.
	snapshotPause = 2 * time.Second
	// catchUpTime is how long after a snapshot the leader's log stays longer, for the node to
	// catch up from there.
	catchUpTime = time.Minute
	// timesLogKeep of Options.LogKeep is what the log has at most meanwhile, but logWhileSendingBytes are
	// always allowed: less a busy leader writes in a moment.
	timesLogKeep         = 4
	logWhileSendingBytes = 64 << 20
	// stagePatience is how long files of a snapshot that was cut off stay for the next one.
	stagePatience = time.Minute
	// lockPause is how often the storer looks whether the old database was closed.
	lockPause = 5 * time.Millisecond
)

// ErrReplaced: the database is being replaced by that of the leader, so this journal has to be
// closed, and opened anew.
var ErrReplaced = fmt.Errorf("%w: the leader's database takes the place of this one", journal.ErrLost)

// snapshots is what a node has for them.
type snapshots struct {
	// guarded by Node.deciding
	sending bool
	end     context.CancelFunc // ends the one that is being sent,
	to      ID                 // to this node
	from    uint64             // a node that has just got a snapshot needs the entries behind this one
	after   time.Duration      // the next one is not sent before, by now
	long    time.Duration      // until then the log stays longer, by now
	asked   bool               // the consensus wants the snapshot that it was given

	sums snapshot.Sums // of the goroutine that sends

	receiving chan struct{} // has a place for the one that is being received
	done, of  atomic.Int64  // bytes of that one; of is 0 if there is none
	arrived   atomic.Pointer[arrival]

	sent, received, failed   atomic.Int64
	sentBytes, receivedBytes atomic.Int64
}

// arrival is a snapshot whose files are there.
type arrival struct {
	at        raftlog.Position
	list      *members.List
	installed chan struct{} // closed when it was installed
}

// barrierKey is a row that is never there. A batch that deletes it makes the database end with an entry
// that is newer than all that were committed before.
var barrierKey = []byte("m|barrier")

// SetJournal tells which journal is open, from now on until Close: this node leads.
func (l *Log) SetJournal(j *journal.Journal) {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	l.n.commits = l.Office()
	l.n.barrier = func() {
		a := j.Begin()
		a.Delete(barrierKey)
		a.End(nil)
		j.WaitDurable()
	}
}

// offerSnapshot is called, with deciding held, when a node needs entries that the log does not have any
// more.
func (n *Node) offerSnapshot() (*raftpb.Snapshot, error) {
	n.mu.Lock()
	index, conf, can := n.committed, n.history.Now().ConfState(), n.checkpoint != nil
	n.mu.Unlock()
	term, err := n.log.Term(index)
	if n.snapshots.sending || !can || err != nil || n.now() < n.snapshots.after {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: &index, Term: &term, ConfState: conf}}, nil
}

// send sends messages to other nodes. deciding is held.
func (n *Node) send(messages []*raftpb.Message) {
	from := 0
	for i, m := range messages {
		if m.GetType() == raftpb.MsgSnap {
			n.transport.Send(messages[from:i])
			from = i + 1
			n.sendSnapshot(m)
		}
	}
	n.transport.Send(messages[from:])
}

// sendSnapshot begins to send a snapshot. deciding is held.
func (n *Node) sendSnapshot(m *raftpb.Message) {
	s := &n.snapshots
	if s.sending {
		n.core.ReportSnapshot(m.GetTo(), false)
		return
	}
	ctx, end := context.WithCancel(n.ending)
	s.sending, s.end, s.to = true, end, ID(m.GetTo())
	n.keepLog(n.log.Base().Index)
	to := n.name(m.GetTo())
	n.running.Go(func() {
		defer n.guard("the sender of a snapshot")
		defer end()
		n.o.Logger.Info("sending all data to a node that was away for too long", "node", n.o.Name, "to", to)
		began, before := time.Now(), s.sentBytes.Load()
		at, err := n.stream(ctx, m)
		err = errors.Join(err, n.o.FS.RemoveAll(snapshot.CopyDir(n.o.FS, n.dir())))
		if err == nil {
			s.sent.Add(1)
			n.o.Logger.Info("a node has all data", "node", n.o.Name, "to", to, "up to entry", at.Index, "bytes", s.sentBytes.Load()-before, "took", time.Since(began))
		} else if n.ending.Err() == nil && !n.roster.Load().list.WasRemoved(ID(m.GetTo())) {
			s.failed.Add(1)
			n.o.Logger.Warn("a node could not be sent all data; trying again", "node", n.o.Name, "to", to, "error", err)
		}
		n.do(func() {
			s.sending, s.end = false, nil
			s.long = n.now() + catchUpTime
			if err != nil {
				s.after = n.now() + snapshotPause
			}
			n.core.ReportSnapshot(m.GetTo(), err == nil)
		})
	})
}

// keepLog keeps the log's entries behind one, for the node that gets a snapshot. deciding is held.
func (n *Node) keepLog(from uint64) {
	n.snapshots.from = from
	n.lookAtFollowers()
}

// errTooEarly: a copy of the database ends too early for a node to go on from there.
var errTooEarly = errors.New("the copy of the database ends too early")

// copyFor copies the database for a node. Usually that needs no other node: the rows of all entries
// that the log does not have any more are in tables. So a node without which there is no
// quorum can get them as well.
func (n *Node) copyFor(to ID, dir string) (at raftlog.Position, list *members.List, err error) {
	n.mu.Lock()
	barrier := n.barrier
	n.mu.Unlock()
	at, list, err = n.tryCopy(to, dir)
	if errors.Is(err, errTooEarly) && barrier != nil {
		barrier()
		at, list, err = n.tryCopy(to, dir)
	}
	return at, list, err
}

func (n *Node) tryCopy(to ID, dir string) (at raftlog.Position, list *members.List, err error) {
	n.mu.Lock()
	checkpoint := n.checkpoint
	n.mu.Unlock()
	if checkpoint == nil {
		return at, nil, errors.New("no journal is open")
	}
	if err := errors.Join(n.o.FS.RemoveAll(dir), checkpoint(dir, false)); err != nil {
		return at, nil, err
	}
	if at, list, err = identity.ReadDatabase(n.o.FS, dir); err != nil {
		return at, nil, err
	}
	if begins := n.log.Base(); list == nil || at.Index < begins.Index {
		return at, nil, fmt.Errorf("%w: with entry %d, and the log begins behind entry %d", errTooEarly, at.Index, begins.Index)
	}
	if _, known := list.Find(to); !known {
		return at, nil, fmt.Errorf("%w: with entry %d, before the node was added", errTooEarly, at.Index)
	}
	return at, list, nil
}

// logWhileSending is how many bytes the log has at most while a snapshot is sent.
func (n *Node) logWhileSending() int64 {
	return max(timesLogKeep*n.o.LogKeep, logWhileSendingBytes)
}

// urgent says whether a snapshot must be sent faster, for the node to go on from it: while so many of all
// its bytes were sent, so many were written to the log, which has room for some. It is, when the written
// share of the room is more than half of the sent share and an eighth, half of which is left then.
func urgent(written, room, sent, all int64) bool {
	return 2*float64(written)*float64(all) > float64(room)*(float64(sent)+float64(all)/8)
}

// stream sends a snapshot in place of the message m, and returns the last entry that it has.
func (n *Node) stream(ctx context.Context, m *raftpb.Message) (at raftlog.Position, err error) {
	self := n.self.Load()
	conn, err := n.Dial(ctx, ID(m.GetTo()), snapshotMagic)
	if err != nil {
		return at, err
	}
	defer conn.Close()
	dir := snapshot.CopyDir(n.o.FS, n.dir())
	var before int64 // bytes of the log
	err = snapshot.Send(ctx, conn, snapshot.Sending{
		FS:    n.o.FS,
		Offer: snapshot.Offer{Cluster: uint64(self.Cluster), From: uint64(self.ID), To: m.GetTo()},
		Make: func() (_ string, h snapshot.Header, err error) {
			var list *members.List
			if at, list, err = n.copyFor(ID(m.GetTo()), dir); err != nil {
				return "", h, err
			}
			// The consensus goes on from the entry of its message, until the other node says that
			// it has later ones: without that entry it would ask for another snapshot.
			offered := m.GetSnapshot().GetMetadata().GetIndex()
			if !n.do(func() { n.keepLog(min(at.Index, offered)) }) {
				return "", h, ErrStopped
			}
			before = n.log.Bytes()
			m.Snapshot = &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: &at.Index, Term: &at.Term, ConfState: list.ConfState()}}
			h = snapshot.Header{Index: at.Index, Term: at.Term}
			h.Message, err = proto.Marshal(m)
			return dir, h, err
		},
		Rate: n.o.SnapshotRate,
		Urgent: func(sent, all int64) bool {
			return urgent(n.log.Bytes()-before, n.logWhileSending()-before, sent, all)
		},
		Sums: &n.snapshots.sums,
		Sent: func(bytes int64) { n.snapshots.sentBytes.Add(bytes) },
	})
	return at, err
}

// endSnapshot ends the snapshot that is being sent, because the office is lost, or the node that gets it
// was removed. deciding is held.
func (n *Node) endSnapshot() {
	if end := n.snapshots.end; end != nil {
		end()
	}
}

// receiveSnapshot takes a snapshot of another node.
func (n *Node) receiveSnapshot(conn net.Conn) {
	defer conn.Close()
	stop := context.AfterFunc(n.ending, func() { _ = conn.Close() })
	defer stop()
	s := &n.snapshots
	dir := snapshot.StageDir(n.o.FS, n.dir())
	mine := false
	err := snapshot.Receive(conn, snapshot.Receiving{
		FS: n.o.FS, Dir: dir,
		Accept: func(o snapshot.Offer) error {
			if err := n.accepts(o); err != nil {
				return err
			}
			select {
			case s.receiving <- struct{}{}:
				mine = true
				return nil
			default:
				return errors.New("another snapshot is under way")
			}
		},
		Room: func(bytes int64) error {
			s.done.Store(0)
			s.of.Store(max(bytes, 1))
			n.o.Logger.Info("the leader sends all data, because this node was away for too long", "node", n.o.Name, "bytes", bytes)
			return n.hasDisk(bytes)
		},
		Received: func(bytes int64) {
			s.done.Add(bytes)
			s.receivedBytes.Add(bytes)
		},
		Pass: func(h snapshot.Header) error { return n.passSnapshot(dir, h) },
	})
	if mine {
		defer func() { <-s.receiving }()
		defer s.of.Store(0)
	}
	if err != nil && n.ending.Err() == nil {
		s.failed.Add(1)
		n.o.Logger.Warn("a snapshot was not received, or its sender does not know that it was", "node", n.o.Name, "address", conn.RemoteAddr().String(), "error", err)
	}
	if !mine {
		return
	}
	if a := s.arrived.Load(); a != nil {
		select {
		case <-a.installed:
		case <-n.ending.Done():
		}
	} else if err != nil {
		n.removeStageLater(dir)
	}
}

// accepts says why a node's offer is refused; nil: it is not.
func (n *Node) accepts(o snapshot.Offer) error {
	self := n.self.Load()
	switch {
	case o.Cluster != uint64(self.Cluster):
		return fmt.Errorf("this node is of cluster %v, and the snapshot of %v", self.Cluster, ID(o.Cluster))
	case o.To != uint64(self.ID):
		return fmt.Errorf("this is node %v, and the snapshot is for %v", self.ID, ID(o.To))
	case o.From == o.To || n.roster.Load().list.WasRemoved(ID(o.From)):
		return fmt.Errorf("node %v is not another member of the cluster", ID(o.From))
	}
	return nil
}

// hasDisk says whether the disk has room for a second database.
func (n *Node) hasDisk(bytes int64) error {
	usage, err := n.o.FS.GetDiskUsage(n.o.Dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	reserve, _ := datadir.NewSpace(n.o.FS, n.o.Dir, 0, n.o.Logger).Reserve()
	if need := uint64(bytes) + uint64(reserve); usage.AvailBytes < need {
		return fmt.Errorf("the disk of node %s has %d bytes free, and needs %d until the old data are replaced: make room", n.o.Name, usage.AvailBytes, need)
	}
	return nil
}

// passSnapshot verifies the database that has arrived, and gives the consensus its message. When
// it has returned nil, either arrived is set, or the snapshot is not needed.
func (n *Node) passSnapshot(dir string, h snapshot.Header) error {
	m := &raftpb.Message{}
	if err := proto.Unmarshal(h.Message, m); err != nil {
		return err
	}
	meta := m.GetSnapshot().GetMetadata()
	at, list, err := identity.ReadDatabase(n.o.FS, dir)
	if errors.Is(err, members.ErrLevel) {
		n.fail(err)
	}
	if err == nil {
		err = checkTables(n.o.FS, dir)
	}
	switch {
	case err != nil:
		return fmt.Errorf("the database that has arrived: %w", err)
	case m.GetType() != raftpb.MsgSnap || at.Index != meta.GetIndex() || at.Term != meta.GetTerm() || list == nil || list.Cluster != n.self.Load().Cluster || !proto.Equal(list.ConfState(), meta.GetConfState()):
		return fmt.Errorf("the database that has arrived ends with entry %v, and the message says %v", at, meta)
	}
	s, a := &n.snapshots, &arrival{at: at, list: list, installed: make(chan struct{})}
	s.arrived.Store(a)
	wanted := false
	if !n.do(func() {
		s.asked = false
		n.core.Step(m, n.now())
		n.work()
		wanted = s.asked
	}) {
		return ErrStopped
	}
	if !wanted {
		s.arrived.Store(nil)
		n.o.Logger.Info("this node has what the leader has sent, or follows another one now", "node", n.o.Name)
		return n.o.FS.RemoveAll(dir)
	}
	return nil
}

// removeStageLater removes what has arrived if no other snapshot goes on with it.
func (n *Node) removeStageLater(dir string) {
	received := n.snapshots.receivedBytes.Load()
	n.running.Go(func() {
		defer failstop.End(n.o.Logger, "the removal of a snapshot's files")
		select {
		case <-time.After(stagePatience):
		case <-n.ending.Done():
			return // the next start removes it
		}
		select {
		case n.snapshots.receiving <- struct{}{}:
		default:
			return
		}
		if n.snapshots.receivedBytes.Load() == received {
			_ = n.o.FS.RemoveAll(dir)
		}
		<-n.snapshots.receiving
	})
}

// install replaces the database by the one that has arrived. The storer calls it.
func (n *Node) install(s raftlog.State, at raftlog.Position) error {
	a := n.snapshots.arrived.Load()
	if a == nil || a.at != at {
		return fmt.Errorf("a snapshot with entry %d is to be installed, and is not there", at.Index)
	}
	if err := n.log.BeginSnapshot(s, at); err != nil {
		return err
	}
	n.mu.Lock()
	n.replacing, n.noRoom = true, nil
	n.generation++
	n.moved.Broadcast()
	n.mu.Unlock()
	lock, err := n.awaitClosed()
	if err != nil {
		return err
	}
	err = snapshot.Install(n.o.FS, n.o.Dir, n.dir())
	if err = errors.Join(err, lock.Close()); err != nil {
		return err
	}
	if err := n.log.EndSnapshot(at, a.list.ConfState()); err != nil {
		return err
	}
	n.storing.setTables(at.Index, nil)
	n.snapshots.received.Add(1)
	n.mu.Lock()
	n.replacing, n.committed = false, max(n.committed, at.Index)
	n.history.Reset(at.Index, a.list)
	n.moved.Broadcast()
	n.mu.Unlock()
	if !n.do(func() { n.setRoster(a.list) }) {
		return ErrStopped
	}
	n.snapshots.arrived.Store(nil)
	close(a.installed)
	n.o.Logger.Info("this node has all data of the leader", "node", n.o.Name, "up to entry", at.Index)
	return nil
}

// awaitClosed waits until the journal has closed the database, and locks the data directory.
func (n *Node) awaitClosed() (*datadir.Lock, error) {
	for {
		lock, err := datadir.Acquire(n.o.FS, n.o.Dir)
		if !errors.Is(err, datadir.ErrLocked) {
			return lock, err
		}
		select {
		case <-time.After(lockPause):
		case <-n.ending.Done():
			return nil, ErrStopped
		}
	}
}

// awaitReplaced waits until no database is being replaced, and returns how often one was.
func (n *Node) awaitReplaced(ctx context.Context) uint64 {
	stop := context.AfterFunc(ctx, n.wakeMoved)
	defer stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.replacing && ctx.Err() == nil && n.ending.Err() == nil {
		n.moved.Wait()
	}
	return n.generation
}

func (n *Node) wakeMoved() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.moved.Broadcast()
}

// checkTables reads all tables of a database and compares them with their checksums.
func checkTables(fsys vfs.FS, dir string) error {
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		r, err := pebblefile.OpenTable(fsys, fsys.PathJoin(dir, name))
		if err == nil {
			err = errors.Join(r.ValidateBlockChecksums(), r.Close())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// Figures are what a node has counted since it was started, and what its log takes.
type Figures struct {
	LogBytes, LogMemoryBytes      int64
	SnapshotsSent, SnapshotsTaken int64 // that were sent whole; that were installed
	SnapshotsFailed               int64 // of both
	SnapshotBytesSent             int64
	SnapshotBytesReceived         int64
	Leaders                       int64              // that it has learned of: elections, as far as it was there
	Fsyncs                        histogram.Snapshot // nanoseconds of each fsync of the log
}

// Figures gives them.
func (n *Node) Figures() Figures {
	s := &n.snapshots
	return Figures{
		LogBytes: n.log.Bytes(), LogMemoryBytes: n.log.MemoryBytes(),
		SnapshotsSent: s.sent.Load(), SnapshotsTaken: s.received.Load(), SnapshotsFailed: s.failed.Load(),
		SnapshotBytesSent: s.sentBytes.Load(), SnapshotBytesReceived: s.receivedBytes.Load(),
		Leaders: n.leaders.Load(), Fsyncs: n.fsyncs.Read(),
	}
}
