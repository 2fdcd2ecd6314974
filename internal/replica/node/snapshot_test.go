package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
	"github.com/holdfast-mqtt/holdfast/internal/replica/snapshot"
)

// put writes a row, whichever node leads, and returns the leader that has acknowledged it.
func (c *cluster) put(nodes map[string]*running, l *leading, key, value string) *leading {
	c.t.Helper()
	for !l.put(key, value) {
		l = c.leader(nodes)
	}
	return l
}

// fill writes rows, and notes them, until the leader's log has dropped the entry after from, the
// last one of a node that is away.
func (c *cluster) fill(nodes map[string]*running, l *leading, from uint64, want map[string]string) *leading {
	c.t.Helper()
	value := strings.Repeat("x", 16<<10)
	for i := 0; nodes[l.name].log.Base().Index <= from; i++ {
		if log := nodes[l.name].log; i > 10_000 {
			c.t.Fatalf("the log has %d bytes, begins with entry %d, and does not drop what was written", log.Bytes(), log.Base().Index+1)
		}
		key := fmt.Sprintf("k|%d.%d", from, i)
		l = c.put(nodes, l, key, key+value)
		want[key] = key + value
	}
	// The messages with these entries wait for the node until it cannot be reached. All that wait
	// are lost at once, and the next to be lost, a heartbeat, is behind them: of this leader or, if another
	// node has been elected meanwhile, of that one.
	lost := func() (all uint64) {
		for _, n := range nodes {
			all += n.transport.Figures().Lost
		}
		return all
	}
	before := lost()
	c.until("the messages to the node that is away are lost", func() bool { return lost() > before })
	return l
}

// leads is the node that leads now, if one does.
func leads(nodes map[string]*running) (name string, found bool) {
	for name, n := range nodes {
		if n.Status().Role == Leader {
			return name, true
		}
	}
	return "", false
}

// has checks that the leader, whichever it is, has rows.
func (c *cluster) has(nodes map[string]*running, l *leading, want map[string]string) {
	c.t.Helper()
	for key, value := range want {
		got, found, err := l.Get([]byte(key))
		for ; err != nil && l.isLost(); got, found, err = l.Get([]byte(key)) {
			l = c.leader(nodes)
		}
		if err != nil || !found || string(got) != value {
			c.t.Fatalf("node %s has %d bytes in %s (%v, %v), want %d", l.name, len(got), key, found, err, len(value))
		}
	}
}

// until waits for a condition that nodes meet by themselves.
func (c *cluster) until(what string, is func() bool) {
	c.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("not within %v: %s\n%v", patience, what, c.log)
		}
	}
}

// others are the nodes but one.
func others(nodes map[string]*running, name string) map[string]*running {
	rest := maps.Clone(nodes)
	delete(rest, name)
	return rest
}

// lead has a node lead, which has everything that the others have.
func (c *cluster) lead(nodes map[string]*running, l *leading, name string) *leading {
	c.t.Helper()
	for {
		if l.name == name {
			return l
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_ = nodes[l.name].Transfer(ctx, nodes[name].ID()) // it may go to another node
		cancel()
		l = c.leader(nodes)
	}
}

// A node that was away for longer than the log is kept gets all data, follows, and can lead with
// all of it; and so again, with a leader that has got its data so.
func TestNodeThatWasAwayForTooLong(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	c.o.LogKeep, c.o.Election = MinLogKeep, 3*time.Second
	nodes := c.start("a", "b", "c")
	l, want := c.leader(nodes), map[string]string{}
	for round := range 3 {
		away := "a"
		for away == l.name {
			away = string(away[0] + 1)
		}
		last := nodes[away].Status().Last
		nodes[away].end()
		l = c.fill(others(nodes, away), l, last, want)
		nodes[away] = c.start(away)[away]
		key := fmt.Sprintf("k|while %d", round)
		l = c.put(nodes, l, key, "v")
		want[key] = "v"
		last = nodes[l.name].Status().Committed
		c.until("the node that was away has caught up", func() bool { return nodes[away].Status().Committed >= last })
		if f := nodes[away].Figures(); f.SnapshotsTaken == 0 || f.SnapshotBytesReceived == 0 {
			t.Errorf("the node that was away has counted %+v", f)
		}
		c.until("a snapshot was sent, and no file of one is left", func() bool {
			sent := int64(0)
			for name, r := range nodes {
				for _, file := range []string{"snapshot", "sending", "installing", "moving"} {
					if _, err := os.Stat(filepath.Join(c.dirs[name], Dir, file)); !errors.Is(err, os.ErrNotExist) {
						return false
					}
				}
				sent += r.Figures().SnapshotsSent
			}
			return sent > 0
		})
		l = c.lead(nodes, l, away)
		c.has(nodes, l, want)
	}
}

// A node that was away for too long gets all data also if there is no quorum without it: another
// node has ended for good meanwhile, so the leader cannot commit anything before.
func TestNodeWithoutWhichThereIsNoQuorum(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	c.o.LogKeep, c.o.Election = MinLogKeep, 3*time.Second
	nodes := c.start("a", "b", "c")
	l, want := c.leader(nodes), map[string]string{}
	away := "a"
	if away == l.name {
		away = "b"
	}
	last := nodes[away].Status().Last
	nodes[away].end()
	rest := others(nodes, away)
	l = c.fill(rest, l, last, want)
	for name, r := range others(rest, l.name) {
		r.end()
		delete(nodes, name)
	}
	<-l.Lost() // the next office begins when the other node has what was written before
	nodes[away] = c.start(away)[away]
	l = c.put(nodes, c.leader(nodes), "k|later", "v")
	c.has(nodes, l, want)
	c.until("the node that was away has all data", func() bool { return nodes[away].Figures().SnapshotsTaken > 0 })
	c.has(nodes, c.lead(nodes, l, away), want)
}

// A leader that ends while it sends a snapshot does not matter: the next one sends it.
func TestLeaderEndsDuringASnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c", "d", "e")
	c.o.LogKeep, c.o.Election = MinLogKeep, 3*time.Second
	nodes := c.start("a", "b", "c", "d", "e")
	l, want := c.leader(nodes), map[string]string{}
	away := "a"
	if away == l.name {
		away = "b"
	}
	for receives := false; !receives; {
		last := nodes[away].Status().Last
		nodes[away].end()
		rest := others(nodes, away)
		l = c.fill(rest, l, last, want)
		// Other nodes drop what they have, too, so that each of them has to send a snapshot.
		c.until("all logs begin later", func() bool {
			for _, r := range rest {
				if r.log.Base().Index <= last && r.log.Bytes() > MinLogKeep*3/4 {
					return false
				}
			}
			return true
		})
		written := nodes[l.name].Status().Committed
		nodes[away] = c.start(away)[away]
		c.until("a snapshot is being received, or was, or another leader has had the entries", func() bool {
			receives = nodes[away].snapshots.of.Load() > 0 || nodes[away].Figures().SnapshotsTaken > 0
			return receives || nodes[away].Status().Last >= written
		})
	}
	ends := l.name
	c.until("a node leads", func() bool {
		name, found := leads(others(nodes, away))
		if found {
			ends = name
		}
		return found
	})
	nodes[ends].end()
	left := others(nodes, ends)
	l = c.put(left, c.leader(left), "k|later", "v")
	c.has(left, l, want)
	last := nodes[l.name].Status().Committed
	c.until("the node that was away has caught up", func() bool { return nodes[away].Status().Committed >= last })
}

// A start completes an installation that was interrupted, and removes what is left of others.
func TestStartCompletesAnInstallation(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	nodes := c.start("a", "b", "c")
	l, copied := c.put(nodes, c.leader(nodes), "k|1", "v"), filepath.Join(t.TempDir(), "copy")
	for err := l.Checkpoint(copied, true); err != nil; err = l.Checkpoint(copied, true) {
		if err = errors.Join(err, os.RemoveAll(copied)); !l.isLost() {
			t.Fatal(err)
		}
		l = c.put(nodes, l, "k|1", "v") // another node was elected
	}
	follower := "a"
	if follower == l.name {
		follower = "b"
	}
	last := nodes[l.name].Status().Committed
	c.until("the follower has all entries", func() bool { return nodes[follower].Status().Committed >= last })
	nodes[follower].end()
	own := filepath.Join(c.dirs[follower], Dir)
	if err := os.Rename(copied, snapshot.StageDir(vfs.Default, own)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(own, "sending"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "installing"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	nodes[follower] = c.start(follower)[follower]
	for _, name := range []string{"installing", "moving", "snapshot", "sending"} {
		if _, err := os.Stat(filepath.Join(own, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.has(nodes, c.lead(nodes, l, follower), map[string]string{"k|1": "v"})
}

// What is not a member's, or not for this node, is refused.
func TestOffersThatAreRefused(t *testing.T) {
	t.Parallel()
	n := &Node{}
	n.roster.Store(&roster{list: &members.List{Removed: []ID{3}}})
	n.self.Store(&identity.Identity{Name: "a", ID: 1, Cluster: 9})
	for _, test := range []struct {
		offer snapshot.Offer
		want  string
	}{
		{snapshot.Offer{Cluster: 9, From: 2, To: 1}, ""},
		{snapshot.Offer{Cluster: 8, From: 2, To: 1}, "of cluster"},
		{snapshot.Offer{Cluster: 9, From: 2, To: 2}, "is for"},
		{snapshot.Offer{Cluster: 9, From: 3, To: 1}, "not another member"},
		{snapshot.Offer{Cluster: 9, From: 1, To: 1}, "not another member"},
	} {
		if err := n.accepts(test.offer); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q", test.offer, err, test.want)
		}
	}
}

// The log keeps half of LogKeep at least, more for a node that answers and lacks it, and more
// than LogKeep only during a snapshot.
func TestLogIsTrimmedByWhatOthersNeed(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem()
	if err := raftlog.Create(fsys, "raft", identity.Founded); err != nil {
		t.Fatal(err)
	}
	log, err := raftlog.Open(raftlog.Options{FS: fsys, Dir: "raft", SegmentBytes: 64 << 10, Applied: identity.Founded})
	if err != nil {
		t.Fatal(err)
	}
	const keep, size = 1 << 20, 8 << 10
	n, last := &Node{o: Options{LogKeep: keep}, log: log}, identity.Founded.Index
	write := func(bytes int) {
		for range bytes / size {
			last++
			index, term := last, uint64(1)
			e := &raftpb.Entry{Index: &index, Term: &term, Data: make([]byte, size)}
			if err := errors.Join(log.Append(raftlog.State{Term: 1, Commit: index - 1}, []*raftpb.Entry{e})); err != nil {
				t.Fatal(err)
			}
			log.SetCommit(last)
		}
	}
	bytes := func(what string, tables uint64, from, to int64) {
		t.Helper()
		if err := n.trim(tables); err != nil {
			t.Fatal(err)
		}
		if got := log.Bytes(); got < from || got > to {
			t.Errorf("%s: the log has %d bytes, want %d to %d", what, got, from, to)
		}
	}
	const slack = keep / 8 // for overhead, and what is trimmed at once
	n.needed.Store(1 << 60)
	write(keep * 2)
	bytes("tables have nothing", identity.Founded.Index, 2*keep, 2*keep+slack)
	n.generous.Store(true)
	n.needed.Store(identity.Founded.Index)
	bytes("a snapshot is being sent", last, 2*keep, 2*keep+slack)
	n.generous.Store(false)
	bytes("a node that answers lacks all", last, keep-slack, keep+slack)
	n.needed.Store(last)
	bytes("all that answer have all", last, keep/2-slack, keep/2+slack)
	write(logWhileSendingBytes + keep)
	n.generous.Store(true)
	n.needed.Store(identity.Founded.Index)
	bytes("a snapshot is being sent, and too much is written", last, logWhileSendingBytes-slack, logWhileSendingBytes+slack)
}

// A log that finds no room on the disk goes on in that of the ballast.
func TestBallastMakesRoomForTheLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := &Node{o: Options{Dir: dir, FS: vfs.Default, Logger: slog.New(slog.DiscardHandler)}}
	if n.makeRoom() {
		t.Error("room was made where none is kept")
	}
	if err := os.WriteFile(filepath.Join(dir, datadir.BallastName), []byte("zeros"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !n.makeRoom() || n.makeRoom() {
		t.Error("the ballast was not released once")
	}
	n.noRoom = func() bool { return true } // a journal knows better
	if !n.makeRoom() {
		t.Error("the journal was not asked")
	}
}

// disk says how much room it has.
type disk struct {
	vfs.FS
	full atomic.Bool
}

func (d *disk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	u := vfs.DiskUsage{TotalBytes: 100 << 30, AvailBytes: 50 << 30}
	if d.full.Load() {
		u.AvailBytes = 1 << 20
	}
	return u, nil
}

// A follower whose disk is full takes nothing more, lives on, and catches up when there is room.
func TestFollowerWithAFullDisk(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "a", "b", "c")
	c.o.Election = 3 * time.Second
	disks := map[string]*disk{}
	for _, p := range c.peers {
		disks[p.Name] = &disk{FS: vfs.Default}
		c.fs[p.Name] = disks[p.Name]
	}
	nodes := c.start("a", "b", "c")
	l := c.leader(nodes)
	follower := "a"
	if follower == l.name {
		follower = "b"
	}
	disks[follower].full.Store(true)
	c.until("the follower knows that its disk is full", func() bool {
		l = c.put(nodes, l, "k|1", "v")
		return nodes[follower].full.Load()
	})
	before := nodes[l.name].Status().Last
	for i := range 20 {
		l = c.put(nodes, l, fmt.Sprint("k|", i), "v")
	}
	last := nodes[l.name].Status().Committed
	if got := nodes[follower].Status().Last; got > before {
		t.Errorf("the follower has entries up to %d on its full disk, and the last was %d before", got, before)
	}
	disks[follower].full.Store(false)
	c.until("the follower has all entries", func() bool { return nodes[follower].Status().Committed >= last })
}
