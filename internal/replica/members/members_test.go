package members

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// three are the founders of a cluster.
func three() *List {
	return New(9, Level, []Member{{Name: "c", ID: 3}, {Name: "a", ID: 1}, {Name: "b", ID: 2}})
}

func (l *List) must(t *testing.T, what raftpb.ConfChangeType, m Member) *List {
	t.Helper()
	c, err := Change(what, m)
	if err != nil {
		t.Fatal(err)
	}
	next, err := l.Apply(c)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func TestAddedPromotedRemoved(t *testing.T) {
	t.Parallel()
	first := three()
	d := Member{Name: "d", ID: 4, Address: "127.0.0.1:4"}
	l := first.must(t, raftpb.ConfChangeAddLearnerNode, d)
	if got, is := l.Find(4); !is || !got.Learner || got.Address != d.Address || l.Voters() != 3 {
		t.Errorf("after it was added: %+v", l)
	}
	l = l.must(t, raftpb.ConfChangeAddNode, d)
	if got, is := l.Named("d"); !is || got.Learner || l.Voters() != 4 {
		t.Errorf("after it got its vote: %+v", l)
	}
	l = l.must(t, raftpb.ConfChangeRemoveNode, Member{ID: 1})
	if _, is := l.Named("a"); is || !l.WasRemoved(1) || l.WasRemoved(2) || !slices.Equal(l.Names(), []string{"b", "c", "d"}) {
		t.Errorf("after a was removed: %+v", l)
	}
	if want := (&raftpb.ConfState{Voters: []uint64{2, 3, 4}}); !proto.Equal(l.ConfState(), want) {
		t.Errorf("the consensus has %v, want %v", l.ConfState(), want)
	}
	if len(first.Members) != 3 || len(first.Removed) != 0 {
		t.Errorf("the first list has changed: %+v", first)
	}
	if _, err := l.Apply(&raftpb.ConfChange{Type: raftpb.ConfChangeType(9).Enum()}); err == nil {
		t.Error("a change of an unknown kind was taken")
	}
}

// A list knows the last nodes that were removed, so that it does not grow forever.
func TestRemovedAreBounded(t *testing.T) {
	t.Parallel()
	l := three()
	for id := range ID(maxRemoved + 1) {
		m := Member{Name: fmt.Sprint("n", id), ID: 100 + id}
		l = l.must(t, raftpb.ConfChangeAddLearnerNode, m).must(t, raftpb.ConfChangeRemoveNode, m)
	}
	if len(l.Removed) != maxRemoved || l.WasRemoved(100) || !l.WasRemoved(101) {
		t.Errorf("%d removed, the first is %v", len(l.Removed), l.Removed[0])
	}
	row, err := AppendRow(nil, 7, l)
	if err != nil || len(row) > 16<<10 {
		t.Errorf("the row has %d bytes: %v", len(row), err)
	}
}

func TestRowHasTheList(t *testing.T) {
	t.Parallel()
	l := three().must(t, raftpb.ConfChangeAddLearnerNode, Member{Name: "d", ID: 1<<64 - 1, Address: "host:1"})
	row, err := AppendRow(nil, 7, l)
	if err != nil {
		t.Fatal(err)
	}
	term, got, err := ReadRow(row)
	if err != nil || term != 7 || fmt.Sprint(got) != fmt.Sprint(l) {
		t.Errorf("read back: term %d, %+v (%v), want %+v", term, got, err, l)
	}
	// Of a program that knew founders only.
	conf, err := proto.Marshal(&raftpb.ConfState{Voters: []uint64{5, 6}})
	if err != nil {
		t.Fatal(err)
	}
	if term, got, err := ReadRow(append(row[:8:8], conf...)); err != nil || term != 7 || got.Cluster != 0 || got.Voters() != 2 {
		t.Errorf("an old row: term %d, %+v (%v)", term, got, err)
	}
	newer := *l
	newer.Level = Level + 1
	if row, err = AppendRow(nil, 7, &newer); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadRow(row); !errors.Is(err, ErrLevel) || !strings.Contains(err.Error(), "use the version") {
		t.Errorf("a row of a newer program: %v", err)
	}
	for _, bad := range [][]byte{nil, {1, 2, 3}, append(row[:9:9], "{"...), append(row[:8:8], 255, 255)} {
		if _, _, err := ReadRow(bad); err == nil {
			t.Errorf("%v was read", bad)
		}
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	var h History
	lists := []*List{three(), three(), three()}
	h.Reset(10, lists[0])
	h.Add(20, lists[1])
	h.Add(30, lists[2])
	at := func(want ...int) {
		t.Helper()
		for i, index := range []uint64{10, 19, 20, 29, 30, 99} {
			if got := h.At(index); want[i] >= 0 && got != lists[want[i]] {
				t.Errorf("after entry %d it is not list %d", index, want[i])
			}
		}
	}
	at(0, 0, 1, 1, 2, 2)
	h.Forget(19)
	at(0, 0, 1, 1, 2, 2)
	h.Forget(20)
	at(-1, -1, 1, 1, 2, 2)
	if h.Now() != lists[2] || len(h.changes) != 2 {
		t.Errorf("%d are known", len(h.changes))
	}
}

// What would leave no quorum that answers is refused, and what would not is not.
func TestChecks(t *testing.T) {
	t.Parallel()
	learner := three().must(t, raftpb.ConfChangeAddLearnerNode, Member{Name: "d", ID: 4, Address: "host:4"})
	full := three()
	for i := 4; len(full.Members) < Max; i++ {
		full.Members = append(full.Members, Member{Name: fmt.Sprint("n", i), ID: ID(i)})
	}
	one := New(9, Level, []Member{{Name: "a", ID: 1}})
	two := New(9, Level, []Member{{Name: "a", ID: 1}, {Name: "b", ID: 2}})
	add := func(l *List, name, address string, down ...ID) error {
		return l.CheckNew(name, address, but(down), func(m Member) string { return fmt.Sprint("host:", uint64(m.ID)) })
	}
	remove := func(l *List, name string, down ...ID) error { return l.CheckRemoval(name, but(down)) }
	for what, test := range map[string]struct {
		err  error
		want string
	}{
		"a fourth node":                             {add(three(), "d", "host:4"), ""},
		"a fourth node, one of three is down":       {add(three(), "d", "host:4", 3), ""},
		"a second node":                             {add(one, "b", "host:2"), ""},
		"a third node, one of two is down":          {add(two, "c", "host:3", 2), ""},
		"a fourth node, two of three are down":      {add(three(), "d", "host:4", 2, 3), "missing: b, c"},
		"a name twice":                              {add(three(), "a", "host:4"), "has a node a already"},
		"an address twice":                          {add(three(), "d", "host:2"), "node b has the address"},
		"while another is being added":              {add(learner, "e", "host:5"), "node d is being added"},
		"a tenth node":                              {add(full, "x", "host:99"), "that is the most"},
		"remove one of three":                       {remove(three(), "a"), ""},
		"remove the one of three that is down":      {remove(three(), "a", 1), ""},
		"remove one of three, another is down":      {remove(three(), "a", 2), "missing: b"},
		"remove one of two":                         {remove(two, "a"), ""},
		"remove the one of two that lives":          {remove(two, "a", 2), "missing: b"},
		"remove the only one":                       {remove(one, "a"), "the only one"},
		"remove a learner":                          {remove(learner, "d", 4), ""},
		"remove a voter while another is added":     {remove(learner, "a"), "node d is being added"},
		"remove a node that there is not":           {remove(three(), "x"), "it has a, b, c"},
		"a vote for a learner":                      {learner.CheckPromotion(but(nil)), ""},
		"a vote for a learner, one of three down":   {learner.CheckPromotion(but([]ID{1})), ""},
		"a vote for a learner, two of three are so": {learner.CheckPromotion(but([]ID{1, 2})), "missing: a, b"},
	} {
		if (test.err == nil) != (test.want == "") || test.err != nil && (!errors.Is(test.err, ErrRefused) || !strings.Contains(test.err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", what, test.err, test.want)
		}
	}
}

// but says that all nodes answer but these.
func but(down []ID) func(ID) bool {
	return func(id ID) bool { return !slices.Contains(down, id) }
}
