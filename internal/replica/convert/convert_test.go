package convert

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
)

const dir = "data"

var quiet = slog.New(slog.DiscardHandler)

func open(t *testing.T, fsys vfs.FS, o journal.Options) *journal.Journal {
	t.Helper()
	o.FS, o.Dir, o.Logger = fsys, dir, quiet
	o.Fatal = func(err error) { t.Errorf("the journal has failed: %v", err) }
	j, err := journal.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// write has a server by itself write rows, and end.
func write(t *testing.T, fsys vfs.FS, from, to int) {
	t.Helper()
	j := open(t, fsys, journal.Options{})
	for i := from; i < to; i++ {
		a := j.Begin()
		a.Set(fmt.Append(nil, "k|", i), fmt.Append(nil, i))
		a.End(nil)
		j.WaitDurable()
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// must checks that a database has the rows before to.
func must(t *testing.T, j *journal.Journal, to int) {
	t.Helper()
	for i := range to {
		v, found, err := j.Get(fmt.Append(nil, "k|", i))
		if err != nil || !found || string(v) != fmt.Sprint(i) {
			t.Fatalf("row %d is %q (%v, %v)", i, v, found, err)
		}
	}
}

// asNode opens the data as the node does, and checks the rows.
func asNode(t *testing.T, fsys vfs.FS, rows int) *identity.Identity {
	t.Helper()
	self, err := identity.Read(fsys, identity.NodeDir(fsys, dir))
	if err != nil || self == nil || self.Cluster == 0 {
		t.Fatalf("the node is %+v: %v", self, err)
	}
	at, list, err := self.Applied(fsys, dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, known := list.Find(self.ID); !known || len(list.Members) != 1 || list.Cluster != self.Cluster {
		t.Errorf("the members are %+v, and this is node %v", list, self.ID)
	}
	l, err := raftlog.Open(raftlog.Options{FS: fsys, Dir: self.LogDir(fsys, identity.NodeDir(fsys, dir)), Applied: at, Conf: list.ConfState()})
	if err != nil {
		t.Fatal(err)
	}
	if last, _ := l.LastIndex(); last != at.Index {
		t.Errorf("the log ends with entry %d, and the database with %d", last, at.Index)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	empty := &tail{s: &Survivor{Last: at.Index}}
	j := open(t, fsys, journal.Options{Log: empty.open})
	must(t, j, rows)
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	return self
}

// Whenever the power fails, or the process is killed, the data are those of a server by itself or those
// of a node, with all rows; and the bootstrap can be repeated.
func TestCrashDuringBootstrap(t *testing.T) {
	t.Parallel()
	for _, kept := range []int{0, 100} { // percent of what no fsync has got to the disk
		t.Run(fmt.Sprintf("with %d %% of what is not synced", kept), func(t *testing.T) {
			t.Parallel()
			disk := vfs.NewCrashableMem()
			if err := disk.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, disk, 0, 10)
			var mu sync.Mutex // Pebble writes on goroutines of its own
			var left []*vfs.MemFS
			crash := func() {
				mu.Lock()
				defer mu.Unlock()
				left = append(left, disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rand.New(rand.NewPCG(1, uint64(len(left))))}))
			}
			before := errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
					crash()
				}
				return nil
			})
			o := Options{FS: errorfs.Wrap(disk, before), Dir: dir, Name: "a", Address: "127.0.0.1:1", Logger: quiet}
			if err := Bootstrap(o); err != nil {
				t.Fatal(err)
			}
			crash()
			mu.Lock()
			crashed := slices.Clone(left)
			mu.Unlock()
			servers, nodes := 0, 0
			for _, fsys := range crashed {
				o.FS = fsys
				is, err := identity.InCluster(fsys, dir)
				if err != nil {
					t.Fatal(err)
				}
				rows := 10
				if is {
					nodes++
				} else {
					servers++
					write(t, fsys, 10, 11) // a server by itself starts
					rows = 11
				}
				if err := Bootstrap(o); err != nil {
					t.Fatal(err)
				}
				asNode(t, fsys, rows)
			}
			if servers == 0 || nodes == 0 {
				t.Errorf("after %d crashes the data were a server's, after %d a node's: the test crashes at the wrong moments", servers, nodes)
			}
		})
	}
}

// The data of a server become those of a node, with all rows, also those that only its log has; once.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem()
	o := Options{FS: fsys, Dir: dir, Name: "a", Address: "127.0.0.1:1", Logger: quiet}
	if err := Bootstrap(o); !errors.Is(err, ErrNoData) {
		t.Errorf("of nothing: %v", err)
	}
	write(t, fsys, 0, 20)
	lock, err := datadir.Acquire(fsys, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := Bootstrap(o); !errors.Is(err, datadir.ErrLocked) {
		t.Errorf("while a server runs: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if is, err := identity.InCluster(fsys, dir); is || err != nil {
		t.Errorf("after a bootstrap that was refused the data are a cluster's: %v, %v", is, err)
	}
	write(t, fsys, 20, 30) // so a server by itself goes on
	if err := Bootstrap(o); err != nil {
		t.Fatal(err)
	}
	first := asNode(t, fsys, 30)
	if len(first.Members) != 1 || first.Members[0].Address != "127.0.0.1:1" {
		t.Errorf("the members are %+v", first.Members)
	}
	if err := Bootstrap(o); err != nil {
		t.Errorf("again: %v", err)
	}
	if again := asNode(t, fsys, 30); again.Cluster != first.Cluster || again.ID != first.ID {
		t.Errorf("it has become another cluster: %+v, and was %+v", again, first)
	}
	o.Name = "b"
	if err := Bootstrap(o); !errors.Is(err, identity.ErrNotOurs) {
		t.Errorf("as another node: %v", err)
	}
}

// A node that has survived becomes a cluster of its own, with everything that its log has.
func TestRecover(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem()
	nodeDir := identity.NodeDir(fsys, dir)
	if err := fsys.MkdirAll(nodeDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(fsys, dir, quiet); !errors.Is(err, ErrNoNode) {
		t.Errorf("of no node: %v", err)
	}
	self := &identity.Identity{Name: "a", ID: 1, Cluster: 9, Members: []members.Member{{Name: "a", ID: 1, Address: "127.0.0.1:1"}, {Name: "b", ID: 2}, {Name: "c", ID: 3}}}
	if err := self.Write(fsys, nodeDir); err != nil {
		t.Fatal(err)
	}
	raft := self.LogDir(fsys, nodeDir)
	if err := raftlog.Create(fsys, raft, identity.Founded); err != nil {
		t.Fatal(err)
	}
	l, err := raftlog.Open(raftlog.Options{FS: fsys, Dir: raft, Applied: identity.Founded})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 { // entries 2 to 6, the last of which is not known to be committed
		b := new(pebble.Batch)
		if err := b.Set(fmt.Append(nil, "k|", i), fmt.Append(nil, i), nil); err != nil {
			t.Fatal(err)
		}
		index, term := uint64(i+2), uint64(3)
		e := &raftpb.Entry{Index: &index, Term: &term, Data: b.Repr()[12:]} // without the header
		if err := l.Append(raftlog.State{Term: 4, Commit: index - 1}, []*raftpb.Entry{e}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.Sync(), l.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := Open(fsys, dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "a" || s.Committed != 5 || s.Last != 6 || s.Term != 3 || fmt.Sprint(s.Others) != "[b c]" {
		t.Errorf("the survivor is %+v", s)
	}
	if _, err := Open(fsys, dir, quiet); !errors.Is(err, datadir.ErrLocked) {
		t.Errorf("twice at once: %v", err)
	}
	if err := errors.Join(s.Recover(), s.Close()); err != nil {
		t.Fatal(err)
	}
	now := asNode(t, fsys, 5)
	if now.Cluster == 9 || now.ID == 1 || len(now.Former) != 1 || now.Former[0] != 9 || now.Begins().Term <= 4 || now.Begins().Index != 6 {
		t.Errorf("the new node is %+v", now)
	}
	// What it has become needs no others.
	if _, err := Open(fsys, dir, quiet); !errors.Is(err, ErrAlone) {
		t.Errorf("and again: %v", err)
	}
	// If the command was interrupted the node does not start, and the command is repeated.
	now.Recovering = true
	if err := now.Write(fsys, nodeDir); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(fsys, dir, quiet); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Recover(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if again := asNode(t, fsys, 5); again.Recovering || len(again.Former) != 2 || again.Cluster == now.Cluster {
		t.Errorf("the new node is %+v", again)
	}
}
