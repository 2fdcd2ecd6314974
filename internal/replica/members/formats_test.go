package members

import (
	"reflect"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
)

// Each entry of the log that changes the members or the format level has a file with one, and so
// has each form of the members' row. The program makes of them what it always has, and writes them
// as it always has.
func TestFormsOfEntriesAndRows(t *testing.T) {
	t.Parallel()
	founders := []Member{{Name: "a", ID: 0xa1}, {Name: "b", ID: 0xb2}}
	before := New(0xc0ffee, 1, founders)
	d := Member{Name: "d", ID: 0xd4, Address: "192.0.2.4:7001"}
	learner := d
	learner.Learner = true
	change := func(what raftpb.ConfChangeType, m Member) []byte {
		c, err := Change(what, m)
		if err != nil {
			t.Fatal(err)
		}
		return marshal(t, c)
	}
	raise, err := Raise(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		written []byte
		want    *List // after before
	}{
		{"entry that adds a learner", change(raftpb.ConfChangeAddLearnerNode, d), &List{Cluster: 0xc0ffee, Level: 1, Members: append(founders[:2:2], learner)}},
		{"entry that gives a vote", change(raftpb.ConfChangeAddNode, d), &List{Cluster: 0xc0ffee, Level: 1, Members: append(founders[:2:2], d)}},
		{"entry that removes", change(raftpb.ConfChangeRemoveNode, founders[1]), &List{Cluster: 0xc0ffee, Level: 1, Members: founders[:1], Removed: []ID{0xb2}}},
		{"entry that raises the level", marshal(t, raise), before},
	} {
		read := &raftpb.ConfChange{}
		err := proto.Unmarshal(goldenfile.Check(t, c.name, c.written), read)
		var got *List
		if err == nil {
			got, err = before.Apply(read)
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			goldenfile.Differs(t, c.name, []any{got, err}, c.want)
		}
	}

	list := &List{Cluster: 0xc0ffee, Level: 1, Members: append(founders[:2:2], learner), Removed: []ID{0xe5}}
	row, err := AppendRow(nil, 7, list)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		row  []byte
		want *List
	}{
		{"row", goldenfile.Check(t, "row", row), list},
		{"row without names", goldenfile.Read(t, "row without names"), &List{Level: 1, Members: []Member{{ID: 0xa1}, {ID: 0xb2}}}},
	} {
		if term, got, err := ReadRow(c.row); term != 7 || err != nil || !reflect.DeepEqual(got, c.want) {
			goldenfile.Differs(t, c.name, []any{term, got, err}, c.want)
		}
	}
}

// marshal is how the consensus writes a change into an entry.
func marshal(t *testing.T, c *raftpb.ConfChange) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
