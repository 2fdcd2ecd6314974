package members

import (
	"errors"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

// The level rises to what all members have announced, learners too, and never falls.
func TestNextLevel(t *testing.T) {
	t.Parallel()
	learner := three().must(t, raftpb.ConfChangeAddLearnerNode, Member{Name: "d", ID: 4, Address: "host:4"})
	all := func(highest ...int) map[ID]Levels {
		announced := map[ID]Levels{}
		for i, n := range highest {
			if n > 0 {
				announced[ID(i+1)] = Levels{1, n}
			}
		}
		return announced
	}
	for what, test := range map[string]struct {
		list      *List
		level     int
		announced map[ID]Levels
		want      int
	}{
		"all know it":                    {three(), 0, all(Level, Level, Level), Level},
		"one knows less":                 {three(), 0, map[ID]Levels{1: {1, Level}, 2: {0, Level - 1}, 3: {1, Level}}, Level - 1},
		"one has not said it":            {three(), 0, all(Level, 0, Level), 0},
		"a learner has not said it":      {learner, 0, all(Level, Level, Level), 0},
		"a learner as well":              {learner, 0, all(Level, Level, Level, Level), Level},
		"others know more":               {three(), 0, all(Level, Level+1, Level+1), Level},
		"one knows less than it is":      {three(), Level, map[ID]Levels{1: {1, Level}, 2: {0, Level - 1}, 3: {1, Level}}, Level},
		"a node that is no member knows": {three(), 0, all(Level, Level, Level, 1), Level},
	} {
		l := *test.list
		l.Level = test.level
		got := l.NextLevel(func(id ID) (Levels, bool) {
			levels, known := test.announced[id]
			return levels, known
		})
		if got != test.want {
			t.Errorf("%s: %d, want %d", what, got, test.want)
		}
	}
}

func TestRaise(t *testing.T) {
	t.Parallel()
	before := three()
	before.Level = Level - 1
	raise := func(to int) (*List, error) {
		entry, err := Raise(to)
		if err != nil {
			t.Fatal(err)
		}
		return before.Apply(entry)
	}
	next, err := raise(Level)
	if err != nil || next.Level != Level || len(next.Members) != 3 || before.Level != Level-1 {
		t.Errorf("raised: %+v, %v; it was %+v", next, err, before)
	}
	if _, err := raise(Level + 1); !errors.Is(err, ErrLevel) || !strings.Contains(err.Error(), "use the version that the other nodes run") {
		t.Errorf("raised beyond what this program knows: %v", err)
	}
	before.Level = Level
	if next, err := raise(Level - 1); err != nil || next.Level != Level {
		t.Errorf("lowered: %+v, %v", next, err)
	}
	if _, err := before.Apply(&raftpb.ConfChange{Type: raftpb.ConfChangeUpdateNode.Enum(), Context: []byte("{")}); err == nil {
		t.Error("an entry that is none was taken")
	}
}

func TestAnnouncedLevels(t *testing.T) {
	t.Parallel()
	for _, l := range []Levels{{1, 1}, {1, 2}, {3, 1<<16 - 1}} {
		if got := Announced(l.Announce()); got != l {
			t.Errorf("%+v is read as %+v", l, got)
		}
	}
	if got := Announced(1); got != (Levels{1, 1}) { // of a program that announces one level
		t.Errorf("1 is read as %+v", got)
	}
	knows := Levels{2, 3}
	for level, want := range map[int]string{1: "first use a version on all nodes", 2: "", 3: "", 4: "use the version that the other nodes run"} {
		if got := knows.Lack(level); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("level %d: %q, want %q", level, got, want)
		}
	}
}
