package convert

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
	"github.com/holdfast-mqtt/holdfast/internal/replica/snapshot"
)

// Survivor is a node of a cluster that has lost its quorum for good, and is to become a cluster of
// one. The caller closes it.
type Survivor struct {
	Name    string
	Cluster members.ID
	Others  []string // the other nodes, as far as this one knows
	// Committed is the last entry that this node knows to be committed, Last the last one in
	// its log. Both are kept.
	Committed, Last uint64
	Term            uint64 // of the last entry: a quorum may have taken others in later terms

	fs      vfs.FS
	dataDir string
	dir     string
	logger  *slog.Logger
	self    *identity.Identity
	log     *raftlog.Log
	list    *members.List // as of the database's last entry
	level   int           // the format level as of the last entry
	applied raftlog.Position
	lock    *datadir.Lock
}

// ErrNoNode: the data directory is not that of a cluster's node.
var ErrNoNode = errors.New("the data directory is not that of a cluster's node")

// ErrAlone: the node is the only one of its cluster, which so has a quorum.
var ErrAlone = errors.New("the node is the only one of its cluster")

// Open opens the data of a node that does not run. It changes nothing but what every start of the
// node would. It fails with ErrNoNode, ErrAlone, datadir.ErrLocked, or with what is wrong.
func Open(fsys vfs.FS, dataDir string, logger *slog.Logger) (*Survivor, error) {
	if fsys == nil {
		fsys = vfs.Default
	}
	s := &Survivor{fs: fsys, dataDir: dataDir, dir: identity.NodeDir(fsys, dataDir), logger: logger}
	self, err := identity.Read(fsys, s.dir)
	if err != nil {
		return nil, err
	}
	if self == nil || self.Cluster == 0 {
		return nil, fmt.Errorf("%w: %s", ErrNoNode, dataDir)
	}
	s.self, s.Name, s.Cluster = self, self.Name, self.Cluster
	if s.lock, err = datadir.Acquire(fsys, s.dir); err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Survivor) open() (err error) {
	data, err := datadir.Acquire(s.fs, s.dataDir)
	if err != nil {
		return err
	}
	_, err = snapshot.Finish(s.fs, s.dataDir, s.dir)
	if err := errors.Join(err, data.Close()); err != nil {
		return err
	}
	if s.applied, s.list, err = s.self.Applied(s.fs, s.dataDir); err != nil {
		return err
	}
	if s.applied.Index == 0 {
		return fmt.Errorf("%w: node %s has no data yet: take another one", ErrNoNode, s.Name)
	}
	s.log, err = raftlog.Open(raftlog.Options{FS: s.fs, Dir: s.self.LogDir(s.fs, s.dir), Applied: s.applied, Conf: s.list.ConfState()})
	if err != nil {
		return err
	}
	s.Committed = s.log.State().Commit
	s.Last, _ = s.log.LastIndex()
	s.Term, _ = s.log.Term(s.Last)
	known, last, err := s.members()
	if err != nil {
		return err
	}
	s.level = last.Level
	s.Others = others(last.Members, s.self.ID)
	if len(others(known, s.self.ID)) == 0 && !s.self.Recovering {
		return fmt.Errorf("%w, and needs no others: start node %s", ErrAlone, s.Name)
	}
	return nil
}

// members are those as of the last entry that is known to be committed, and as of the last one: the
// database has those as of its last row.
func (s *Survivor) members() (known []members.Member, last *members.List, err error) {
	list := s.list
	known = list.Members
	for next := s.applied.Index + 1; next <= s.Last; {
		entries, err := s.log.Entries(next, s.Last+1, tailBytes)
		if err != nil {
			return nil, nil, fmt.Errorf("entry %d: %w", next, err)
		}
		if len(entries) == 0 {
			return nil, nil, fmt.Errorf("entry %d is not in the log", next)
		}
		for _, e := range entries {
			next = e.GetIndex() + 1
			if e.GetType() != raftpb.EntryConfChange {
				continue
			}
			change := &raftpb.ConfChange{}
			if err := proto.Unmarshal(e.GetData(), change); err != nil {
				return nil, nil, fmt.Errorf("entry %d: %w", e.GetIndex(), err)
			}
			if list, err = list.Apply(change); err != nil {
				return nil, nil, fmt.Errorf("entry %d: %w", e.GetIndex(), err)
			}
			if e.GetIndex() <= s.Committed {
				known = list.Members
			}
		}
	}
	return known, list, nil
}

// Close closes what Open has opened.
func (s *Survivor) Close() error {
	var errs []error
	if s.log != nil {
		errs = append(errs, s.log.Close())
		s.log = nil
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// Recover makes the node a cluster of its own, with another ID, and everything that its log has. The
// nodes of the former cluster are refused by it. If it fails, or the process ends, the node does
// not start until it was repeated.
func (s *Survivor) Recover() error {
	next := *s.self
	next.Recovering = true
	if err := next.Write(s.fs, s.dir); err != nil {
		return err
	}
	if err := s.applyAll(); err != nil {
		return err
	}
	// The new cluster's first term is a later one than that of any entry.
	at := raftlog.Position{Index: s.Last, Term: max(s.Term, s.log.State().Term) + 1}
	next.Recovering = false
	next.Former = append(append([]members.ID(nil), s.self.Former...), s.Cluster)
	next.ID, next.Cluster, next.Level = members.NewID(), members.NewID(), s.level
	next.Members = []members.Member{{Name: s.Name, ID: next.ID}}
	for _, m := range append(s.list.Members, s.self.Members...) {
		if m.ID == s.self.ID && m.Address != "" {
			next.Members[0].Address = m.Address
			break
		}
	}
	return begin(s.fs, s.dir, &next, at)
}

// applyAll gives the database the rows of all entries that the log has, also of those that are not
// known to be committed: a client may have been told that they are.
func (s *Survivor) applyAll() error {
	var failed error
	l := &tail{s: s}
	j, err := journal.Open(journal.Options{
		FS: s.fs, Dir: s.dataDir, Logger: s.logger, Log: l.open, Row: l.row, Fatal: func(err error) { failed = err },
	})
	if err != nil {
		return err
	}
	return errors.Join(j.Flush(), j.Close(), failed)
}

// tail is the survivor's log as a journal sees it, which writes nothing.
type tail struct {
	s    *Survivor
	next uint64
}

func (t *tail) open(o journal.LogOptions) (journal.Log, error) {
	t.next = max(o.Applied, t.s.applied.Index) + 1
	return t, nil
}

// row is that of the database: the members do not matter, because those of the new cluster count.
func (t *tail) row(dst []byte, number uint64) (key, value []byte, err error) {
	term, err := t.s.log.Term(number)
	if err == nil {
		value, err = members.AppendRow(dst, term, t.s.list)
	}
	return identity.MembersKey, value, err
}

const tailBytes = 1 << 20 // read from the log at a time

func (t *tail) Replay(fn func(number uint64, rows []byte) error) error {
	for t.next <= t.s.Last {
		var err error
		if t.next, err = t.s.log.EachRows(t.next, t.s.Last+1, tailBytes, fn); err != nil {
			return err
		}
	}
	return nil
}

func (t *tail) Begin() error { return nil }

func (t *tail) Commit([]byte) (uint64, error) {
	return 0, errors.New("nothing is written while a node is recovered")
}

func (t *tail) Sync() error       { return nil }
func (t *tail) Trim(uint64) error { return nil }
func (t *tail) Check() error      { return nil }
func (t *tail) Close() error      { return nil }
