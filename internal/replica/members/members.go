// Package members says which nodes a cluster has: their names, IDs and addresses, which of them
// are learners, and which were removed. A List is a part of the replicated state: each change is
// an entry of the Raft log, and each database has the List as of the last entry that it has.
//
// The package decides whether a change may be made, and what it makes of a List. It proposes,
// stores and sends nothing.
package members

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// ID identifies a node, or a cluster: a random number that is never 0, and for a node never
// used again. In text it is 16 hexadecimal digits.
type ID uint64

func (id ID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// MarshalText is String.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (id *ID) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 16, 64)
	*id = ID(n)
	return err
}

// NewID makes a random ID.
func NewID() ID {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // does not fail
		if id := ID(binary.LittleEndian.Uint64(b[:])); id != 0 {
			return id
		}
	}
}

const (
	// Max bounds the nodes of a cluster, learners included.
	Max = 9
	// maxRemoved bounds the nodes that a List knows as removed: the last ones.
	maxRemoved = 256
)

// Member is a node of a cluster.
type Member struct {
	Name string `json:"name"`
	ID   ID     `json:"id"`
	// Address of the node's port for the others, HOST:PORT. A List has that of nodes that were
	// added; founders know each other's from their configuration.
	Address string `json:"address,omitempty"`
	// Learner: the node gets everything and has no vote yet.
	Learner bool `json:"learner,omitempty"`
}

// List is which nodes a cluster has. It is not changed: Apply makes another one.
type List struct {
	Cluster ID       `json:"cluster"` // 0: the program that wrote it did not say
	Level   int      `json:"level"`   // format level, see level.go
	Members []Member `json:"members"` // by name
	Removed []ID     `json:"removed,omitempty"`
}

// New makes the List with which a cluster begins.
func New(cluster ID, level int, founders []Member) *List {
	l := &List{Cluster: cluster, Level: level, Members: slices.Clone(founders)}
	l.sort()
	return l
}

func (l *List) sort() {
	sort.Slice(l.Members, func(i, j int) bool { return l.Members[i].Name < l.Members[j].Name })
}

// Find gives the member with an ID; false: there is none.
func (l *List) Find(id ID) (Member, bool) {
	return l.find(func(m Member) bool { return m.ID == id })
}

// Named gives the member with a name; false: there is none.
func (l *List) Named(name string) (Member, bool) {
	return l.find(func(m Member) bool { return m.Name == name })
}

func (l *List) find(is func(Member) bool) (Member, bool) {
	if i := slices.IndexFunc(l.Members, is); i >= 0 {
		return l.Members[i], true
	}
	return Member{}, false
}

// WasRemoved says whether a node was a member and is none any more.
func (l *List) WasRemoved(id ID) bool { return slices.Contains(l.Removed, id) }

// Names are those of all members.
func (l *List) Names() (names []string) {
	for _, m := range l.Members {
		names = append(names, m.Name)
	}
	return names
}

// Voters is how many members have a vote.
func (l *List) Voters() (n int) {
	for _, m := range l.Members {
		if !m.Learner {
			n++
		}
	}
	return n
}

// ConfState is the List as the consensus has it.
func (l *List) ConfState() *raftpb.ConfState {
	c := &raftpb.ConfState{}
	for _, m := range l.Members {
		if m.Learner {
			c.Learners = append(c.Learners, uint64(m.ID))
		} else {
			c.Voters = append(c.Voters, uint64(m.ID))
		}
	}
	slices.Sort(c.Voters)
	slices.Sort(c.Learners)
	return c
}

// Change makes the entry that makes a node a learner, then a voter, or removes it.
func Change(what raftpb.ConfChangeType, m Member) (*raftpb.ConfChange, error) {
	b, err := json.Marshal(Member{Name: m.Name, ID: m.ID, Address: m.Address})
	id := uint64(m.ID)
	return &raftpb.ConfChange{Type: &what, NodeId: &id, Context: b}, err
}

// Apply makes the List after a change. It fails with ErrLevel, or with what is wrong with the entry.
func (l *List) Apply(change *raftpb.ConfChange) (*List, error) {
	if change.GetType() == raftpb.ConfChangeUpdateNode {
		return l.raise(change.GetContext())
	}
	next := *l
	id := ID(change.GetNodeId())
	next.Members = slices.DeleteFunc(slices.Clone(l.Members), func(m Member) bool { return m.ID == id })
	switch what := change.GetType(); what {
	case raftpb.ConfChangeAddNode, raftpb.ConfChangeAddLearnerNode:
		var m Member
		if err := json.Unmarshal(change.GetContext(), &m); err != nil {
			return nil, fmt.Errorf("a change of the members cannot be read: %w", err)
		}
		m.ID, m.Learner = id, what == raftpb.ConfChangeAddLearnerNode
		next.Members = append(next.Members, m)
		next.sort()
	case raftpb.ConfChangeRemoveNode:
		if len(next.Members) == len(l.Members) {
			return l, nil
		}
		next.Removed = append(slices.Clone(l.Removed), id)
		if n := len(next.Removed); n > maxRemoved {
			next.Removed = next.Removed[n-maxRemoved:]
		}
	default:
		return nil, fmt.Errorf("a change of the members of kind %d, which this program does not know: use a newer version", what)
	}
	return &next, nil
}

// rowFormat follows the term in a row that has a List. In rows of earlier programs the encoded
// ConfState follows, which never begins with this byte.
const rowFormat = 0

// AppendRow appends the row that a database has with the index of the last entry whose rows it
// has: the term of that entry and the List.
func AppendRow(dst []byte, term uint64, l *List) ([]byte, error) {
	b, err := json.Marshal(l)
	return append(append(binary.BigEndian.AppendUint64(dst, term), rowFormat), b...), err
}

// ReadRow reads what AppendRow has written. In the List of an earlier program members have no
// names. It fails with ErrLevel.
func ReadRow(row []byte) (term uint64, l *List, err error) {
	if len(row) < 8 {
		return 0, nil, errors.New("the row of the members is too short")
	}
	term, row = binary.BigEndian.Uint64(row), row[8:]
	if len(row) == 0 || row[0] != rowFormat {
		c := &raftpb.ConfState{}
		if err := proto.Unmarshal(row, c); err != nil {
			return 0, nil, fmt.Errorf("the row of the members cannot be read: %w", err)
		}
		l = &List{Level: 1}
		for _, id := range c.GetVoters() {
			l.Members = append(l.Members, Member{ID: ID(id)})
		}
		return term, l, nil
	}
	l = &List{}
	if err := json.Unmarshal(row[1:], l); err != nil {
		return 0, nil, fmt.Errorf("the row of the members cannot be read: %w", err)
	}
	if err := CheckLevel(l.Level); err != nil {
		return 0, nil, err
	}
	return term, l, nil
}
