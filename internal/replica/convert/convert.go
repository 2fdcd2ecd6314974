// Package convert makes a cluster of one node out of data that are there: those of a server by
// itself (Bootstrap), or those of a node whose cluster has lost its quorum for good (Recover).
// Other nodes are then added, and get everything by a snapshot.
//
// No node, and no server, runs on the data meanwhile. Both steps prepare a Raft log that begins
// behind the last entry of the database, in a directory of its own, and then write the node's
// identity: that is the moment at which the data directory is a new cluster's. What was before stays
// valid until then, so a crash leaves the one or the other, and the step can be repeated.
package convert

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// Options of Bootstrap.
type Options struct {
	FS      vfs.FS // nil: the machine's
	Dir     string // the data directory
	Name    string // of the node
	Address string // of its port, for the nodes that are added
	Logger  *slog.Logger
}

// ErrNoData: there is nothing of which a cluster could be made.
var ErrNoData = errors.New("there are no data of a server")

// Bootstrap makes the data of a server by itself those of a cluster of one node, if they are not
// a node's already. It fails with ErrNoData, datadir.ErrLocked, identity.ErrNotOurs, or with what the
// journal or the file system say.
func Bootstrap(o Options) error {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if desc, err := pebble.Peek(o.Dir, o.FS); err == nil && !desc.Exists || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w in %s, so it cannot be made a cluster of them: if a node has lost its data, remove it from its cluster and add it again; a new cluster needs no --cluster-bootstrap", ErrNoData, o.Dir)
	} else if err != nil {
		return err
	}
	dir := identity.NodeDir(o.FS, o.Dir)
	node, err := datadir.Acquire(o.FS, dir)
	if err != nil {
		return err
	}
	return errors.Join(o.bootstrap(dir), node.Close())
}

func (o *Options) bootstrap(dir string) error {
	self, err := identity.Read(o.FS, dir)
	switch {
	case err != nil:
		return err
	case self == nil:
		self = &identity.Identity{Name: o.Name, ID: members.NewID()}
		if err := self.Write(o.FS, dir); err != nil {
			return err
		}
	case self.Name != o.Name:
		return fmt.Errorf("%w: %s is that of node %q, and this is to be node %q", identity.ErrNotOurs, o.Dir, self.Name, o.Name)
	case self.Cluster != 0:
		return nil // it is a node's already
	}
	if err := o.writeTables(); err != nil {
		return err
	}
	lock, err := datadir.Acquire(o.FS, o.Dir) // until it is a node's
	if err != nil {
		return err
	}
	at, err := o.last(lock)
	if err == nil {
		self.Members = []members.Member{{Name: o.Name, ID: self.ID, Address: o.Address}}
		self.Cluster = members.NewID()
		self.Level = members.Level // a server by itself writes the newest formats
		err = begin(o.FS, dir, self, at)
	}
	if err == nil {
		err = o.removeSegments()
	}
	if err := errors.Join(err, lock.Close()); err != nil {
		return err
	}
	o.Logger.Info("the data of this server are those of a cluster of one node now: add others with holdfast cluster add", "node", o.Name, "cluster", self.Cluster, "dir", o.Dir)
	return nil
}

// removeSegments removes the log of the server by itself, of which tables have everything.
func (o *Options) removeSegments() error {
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, is := wal.ParseSegmentName(name); is {
			if err := o.FS.Remove(o.FS.PathJoin(o.Dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// begin makes a node's data those of a cluster that begins behind an entry.
func begin(fsys vfs.FS, dir string, self *identity.Identity, at raftlog.Position) error {
	former := self.Log
	self.Base = &identity.Base{Index: at.Index, Term: at.Term}
	self.Log = identity.DefaultLog + "-" + self.Cluster.String()
	path := self.LogDir(fsys, dir)
	if err := fsys.RemoveAll(path); err != nil {
		return err
	}
	if err := raftlog.Create(fsys, path, at); err != nil {
		return err
	}
	if err := self.Write(fsys, dir); err != nil {
		return err
	}
	return removeLogs(fsys, dir, former, self.Log)
}

// removeLogs removes the Raft logs that the node does not use any more.
func removeLogs(fsys vfs.FS, dir, former, used string) error {
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name != used && (name == former || name == identity.DefaultLog || strings.HasPrefix(name, identity.DefaultLog+"-")) {
			if err := fsys.RemoveAll(fsys.PathJoin(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeTables opens the data as a server by itself does, and writes everything that its log has
// into tables.
func (o *Options) writeTables() error {
	var failed error
	j, err := journal.Open(journal.Options{FS: o.FS, Dir: o.Dir, Logger: o.Logger, Fatal: func(err error) { failed = err }})
	if err != nil {
		return err
	}
	return errors.Join(j.Flush(), j.Close(), failed)
}

// last is the last batch that the database has, as an entry. It fails if the log has rows of later
// batches: a server has run meanwhile.
func (o *Options) last(lock *datadir.Lock) (at raftlog.Position, err error) {
	desc, err := pebble.Peek(o.Dir, o.FS)
	if err != nil || !desc.Exists {
		return at, errors.Join(err, fmt.Errorf("%s has no database", o.Dir))
	}
	db, err := pebblefile.OpenReadOnly(o.FS, o.Dir, lock, true)
	if err != nil {
		return at, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	at = identity.Founded
	index, _, err := identity.ReadApplied(db)
	if err != nil {
		return at, err
	}
	at.Index = max(at.Index, index)
	state, err := wal.ReadState(db, index)
	if err != nil {
		return at, err
	}
	l, err := wal.Read(wal.Options{FS: o.FS, Dir: o.Dir}, state)
	if err != nil {
		return at, err
	}
	if damage := l.Damage(); len(damage) > 0 {
		return at, errors.New(damage[0].String())
	}
	err = l.Replay(func(number uint64, rows []byte) error {
		if len(rows) > 0 {
			return fmt.Errorf("a server has run on %s meanwhile: try again", o.Dir)
		}
		return nil
	})
	return at, err
}

// others are the names of the members but one.
func others(all []members.Member, id members.ID) (names []string) {
	for _, m := range all {
		if m.ID != id {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names
}
