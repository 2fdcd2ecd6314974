package members

import (
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
)

// Format levels
//
// A cluster has a format level, which is a part of its List. It says in which formats nodes write
// what other nodes read: entries of the log, rows of the database, the tables of a snapshot and
// the List itself. A program knows levels from Lowest to Level, and writes the formats of the
// level that its cluster has, also if it knows newer ones. Nodes announce what they know whenever
// they connect. When all members, learners too, are connected to the leader and know a higher
// level, the leader has the cluster go there, by an entry of the log (Raise). So nodes can be
// given a new program one after the other, and until the last one has it each can get the old one
// back. A level is never lowered. A node that does not know the level of its cluster is kept out.
//
// A change of any such format that an earlier program cannot read needs a new Level: the program
// keeps writing what the former level says while List.Level is lower, and reads both. Which
// formats level 1 stands for is in formats_test.go of package node, and byte by byte in the files
// that formats_test.go of packages members, raftlog, wal and journal, and of rows of broker and engine,
// compare with what the program writes. What nodes say to each other over connections is in such files of
// packages transport, snapshot, founding, control, relay, clients and proxy. Lowest rises when a program ceases to write an old format, at the earliest one release after Level has risen.

// Lowest is the lowest format level that this program can read and write. Clusters that are founded begin with it.
const Lowest = 1

// Levels are the format levels that a program can read and write.
type Levels struct{ Lowest, Highest int }

// Own are those of this program.
var Own = Levels{Lowest, Level}

// Announced makes of Announce's number what it says. A program of before there was a lowest level
// announces its level alone.
func Announced(n uint32) Levels { return Levels{max(int(n>>16), 1), int(n & 0xffff)} }

// Announce is the number by which a node tells the others.
func (l Levels) Announce() uint32 { return uint32(l.Lowest)<<16 | uint32(l.Highest) }

// ErrLevel: a program does not know the format level of its cluster.
var ErrLevel = errors.New("the cluster has another format than this program knows")

// Lack says why a program of these levels cannot be in a cluster of a level, and what to do; empty: it can.
func (l Levels) Lack(level int) string {
	switch {
	case level > l.Highest:
		return fmt.Sprintf("knows the format level %d, and the cluster has level %d: use the version that the other nodes run", l.Highest, level)
	case level < l.Lowest:
		return fmt.Sprintf("knows the format levels from %d on, and the cluster has level %d: first use a version on all nodes that knows both", l.Lowest, level)
	}
	return ""
}

// CheckLevel fails with ErrLevel if this program does not know a cluster's format level.
func CheckLevel(level int) error {
	if lack := Own.Lack(level); lack != "" {
		return fmt.Errorf("%w: this program %s", ErrLevel, lack)
	}
	return nil
}

// NextLevel is the highest level that all members know, according to what they have announced. It is
// the level of the List if one of them has announced nothing, or knows no higher one.
func (l *List) NextLevel(announced func(ID) (Levels, bool)) int {
	next := Level
	for _, m := range l.Members {
		levels, known := announced(m.ID)
		if !known {
			return l.Level
		}
		next = min(next, levels.Highest)
	}
	return max(next, l.Level)
}

// raised is the content of Raise's entry.
type raised struct {
	Level int `json:"level"`
}

// Raise makes the entry that raises the level. To the consensus it is a change of the membership that
// changes nothing, so no other one is made at the same time.
func Raise(level int) (*raftpb.ConfChange, error) {
	b, err := json.Marshal(raised{level})
	return &raftpb.ConfChange{Type: raftpb.ConfChangeUpdateNode.Enum(), NodeId: new(uint64), Context: b}, err
}

// raise makes the List after Raise's entry. It fails with ErrLevel.
func (l *List) raise(entry []byte) (*List, error) {
	var r raised
	if err := json.Unmarshal(entry, &r); err != nil {
		return nil, fmt.Errorf("a change of the format level cannot be read: %w", err)
	}
	if err := CheckLevel(max(r.Level, l.Level)); err != nil {
		return nil, err
	}
	next := *l
	next.Level = max(r.Level, l.Level)
	return &next, nil
}
