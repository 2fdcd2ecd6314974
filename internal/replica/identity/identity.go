// Package identity keeps, in a node's directory, who the node is and to which cluster it belongs.
//
// Writing the file is the moment at which a data directory becomes that of a cluster's node: by
// founding a cluster, by joining one, or by making one of a single server's data or of a node
// that has survived (package convert). What such a step has prepared before does not count
// until then.
package identity

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// Dir is the directory in a data directory that has what a cluster needs of a node. There is
// none if the data directory was never a node's.
const Dir = "cluster"

// NodeDir is that directory of a data directory.
func NodeDir(fsys vfs.FS, dataDir string) string { return fsys.PathJoin(dataDir, Dir) }

// Identity is who a node is.
type Identity struct {
	Format  int        `json:"format"`
	Name    string     `json:"name"`
	ID      members.ID `json:"id"`
	Cluster members.ID `json:"cluster"` // 0: the node does not belong to one yet
	// Level is the cluster's format level when the node became one of its nodes; 0: 1.
	Level int `json:"level,omitempty"`
	// Members are the nodes when this one became one of them, with the addresses at which this
	// node reaches them. Which nodes there are now is in the database (members.List).
	Members []members.Member `json:"members"`
	// Base is the entry behind which this node's log began; nil: Founded.
	Base *Base `json:"base,omitempty"`
	// Log is the directory of the Raft log; empty: DefaultLog.
	Log string `json:"log,omitempty"`
	// Former are the clusters of which this one was made anew, from one node that had survived.
	Former []members.ID `json:"former,omitempty"`
	// Recovering: the node is being made a cluster of its own. It must not start before it is.
	Recovering bool `json:"recovering,omitempty"`
}

// Base is an entry.
type Base struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
}

// Founded is the entry with which a cluster begins that several nodes found together.
var Founded = raftlog.Position{Index: 1, Term: 1}

// DefaultLog is the directory of the Raft log, in the node's directory.
const DefaultLog = "raft"

// Begins is the entry behind which the node's log began. The database of that moment has it, and
// all before it.
func (i *Identity) Begins() raftlog.Position {
	if i.Base == nil {
		return Founded
	}
	return raftlog.Position{Index: i.Base.Index, Term: i.Base.Term}
}

// LogDir is the directory of the Raft log.
func (i *Identity) LogDir(fsys vfs.FS, nodeDir string) string {
	if i.Log == "" {
		return fsys.PathJoin(nodeDir, DefaultLog)
	}
	return fsys.PathJoin(nodeDir, i.Log)
}

// Founders is the List with which the node began: those that founded the cluster with it, or, of
// a node that joined one, none.
func (i *Identity) Founders() *members.List {
	var founders []members.Member
	if i.Begins().Index > 0 {
		for _, m := range i.Members {
			founders = append(founders, members.Member{Name: m.Name, ID: m.ID})
		}
	}
	return members.New(i.Cluster, max(i.Level, 1), founders)
}

const (
	file   = "node"
	format = 2
	// Max bounds the file, in bytes.
	Max = 64 << 10
)

// Read reads it from a node's directory; nil: there is none.
func Read(fsys vfs.FS, dir string) (*Identity, error) {
	path := fsys.PathJoin(dir, file)
	f, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, Max))
	i := &Identity{}
	if err = errors.Join(err, f.Close()); err == nil {
		err = json.Unmarshal(b, i)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s cannot be read: %w", path, err)
	case i.Format < 1 || i.Format > format:
		return nil, fmt.Errorf("%w: %s has format %d, and this program knows %d: use the version that the other nodes run", members.ErrLevel, path, i.Format, format)
	case i.ID == 0:
		return nil, fmt.Errorf("%s does not say which node this is", path)
	}
	return i, nil
}

// Write durably writes the identity, in place of the one that is there.
func (i *Identity) Write(fsys vfs.FS, dir string) error {
	i.Format = format
	b, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	if len(b) >= Max {
		return fmt.Errorf("%s has no room for %d bytes", file, len(b))
	}
	path := fsys.PathJoin(dir, file)
	f, err := fsys.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return errors.Join(fsys.Rename(path+".new", path), datadir.SyncDir(fsys, dir))
}

// InCluster says whether a data directory belongs to a node of a cluster: one that has none yet
// has nothing that a server by itself could harm.
func InCluster(fsys vfs.FS, dataDir string) (bool, error) {
	dir := NodeDir(fsys, dataDir)
	i, err := Read(fsys, dir)
	if i != nil || err != nil {
		return i != nil && (i.Cluster != 0 || i.Recovering), err
	}
	_, err = fsys.Stat(fsys.PathJoin(dir, DefaultLog)) // the file may have been lost
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// ClusterOf derives the ID of a cluster from its founders, so that all of them give it the same.
func ClusterOf(founders []members.Member) members.ID {
	h := sha256.New()
	for _, m := range founders {
		_, _ = fmt.Fprintf(h, "%s=%v\n", m.Name, m.ID)
	}
	return members.ID(binary.LittleEndian.Uint64(h.Sum(nil))) | 1
}

// MembersKey is the row of a database that goes with journal.AppliedKey: the term of that entry,
// and the members that it leaves. See members.AppendRow.
var MembersKey = []byte("m|raft")

// ErrNotOurs: the data directory is not this node's.
var ErrNotOurs = errors.New("the data directory is not this node's")

// Applied reads which entry the database of this node ends with, and the members then. The
// caller does not hold the data directory's lock.
func (i *Identity) Applied(fsys vfs.FS, dataDir string) (at raftlog.Position, list *members.List, err error) {
	at, list, err = ReadDatabase(fsys, dataDir)
	if err != nil {
		return at, nil, err
	}
	begins, made := i.Begins(), i.Base != nil && i.Base.Index > 0
	switch {
	case made && (at.Index == begins.Index || begins.Index == 1 && at.Index == 0): // of data that were there
		return begins, i.Founders(), nil
	case list == nil && at.Index == 0:
		return begins, i.Founders(), CheckUnused(fsys, dataDir)
	case list == nil:
		return at, nil, ofServer(dataDir)
	case list.Cluster == 0: // of an earlier program, which had founders only
		return at, i.Founders(), nil
	case list.Cluster != i.Cluster:
		return at, nil, fmt.Errorf("%w: %s has data of the cluster %v, and this node is of %v", ErrNotOurs, dataDir, list.Cluster, i.Cluster)
	}
	return at, list, nil
}

// CheckUnused fails with ErrNotOurs if a data directory has what a server by itself has written:
// its log and its database. The caller does not hold the data directory's lock.
func CheckUnused(fsys vfs.FS, dataDir string) error {
	at, list, err := ReadDatabase(fsys, dataDir)
	if err != nil {
		return err
	}
	names, err := fsys.List(dataDir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(names) == 0 {
		return nil
	}
	used, err := wal.FirstUsed(fsys, dataDir)
	if err == nil && (at.Index > 0 || list != nil || used != "") {
		err = ofServer(dataDir)
	}
	return err
}

func ofServer(dataDir string) error {
	return fmt.Errorf("%w: %s has the data of a server that was no node; start this node with a new directory, or make a cluster of the data with --cluster-bootstrap", ErrNotOurs, dataDir)
}

// ReadDatabase reads which entry a database ends with, and the members that go with it; nil: it
// is no node's, or there is none. The index is 0 if nothing was ever applied.
func ReadDatabase(fsys vfs.FS, dir string) (at raftlog.Position, list *members.List, err error) {
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
	index, row, err := ReadApplied(db)
	at.Index = index
	if err != nil || row == nil {
		return at, nil, err
	}
	at.Term, list, err = members.ReadRow(row)
	return at, list, err
}

// ReadApplied reads the index of the last entry that a database has, 0 if it has none, and the row
// MembersKey, nil if there is none.
func ReadApplied(db *pebble.DB) (index uint64, row []byte, err error) {
	applied, err := readRow(db, journal.AppliedKey)
	if err != nil {
		return 0, nil, err
	}
	if len(applied) == 8 {
		index = binary.BigEndian.Uint64(applied)
	}
	if row, err = readRow(db, MembersKey); err == nil && row != nil && len(applied) != 8 {
		err = fmt.Errorf("the row %s is missing", journal.AppliedKey)
	}
	return index, row, err
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

// Has says whether a node with this name and ID is among some.
func Has(all []members.Member, name string, id members.ID) bool {
	return slices.ContainsFunc(all, func(m members.Member) bool { return m.Name == name && m.ID == id })
}
