package watches

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
)

// link is a connection of which the tests need no more than that it is one.
type link struct{ number int }

func (*link) Register(context.Context, string, func(State)) error { return nil }
func (*link) Unregister(context.Context, string)                  {}
func (*link) Dead() <-chan struct{}                               { return nil }

// newSet is a set whose events are the changes.
func newSet() *Set[Change] {
	return NewSet(context.Background(), func(c Change) Change { return c }, func(error) bool { return false })
}

// What the watchers are told, for each order in which a server's words can
// come after a reconnect. Version n stands for the n-th change.
func TestWhatWatchersAreTold(t *testing.T) {
	t.Parallel()
	at := func(n uint64) hlc.Timestamp { return hlc.Timestamp{Wall: n, Counter: 1, Node: "s"} }
	set := func(n uint64) func(*Set[Change], Link, *registration[Change]) {
		return func(s *Set[Change], l Link, _ *registration[Change]) {
			s.Notified(l, Change{Key: "k", Value: []byte("v"), Version: at(n)})
		}
	}
	deleted := func(n uint64) func(*Set[Change], Link, *registration[Change]) {
		return func(s *Set[Change], l Link, _ *registration[Change]) {
			s.Notified(l, Change{Key: "k", Deleted: true, Version: at(n)})
		}
	}
	hit := func(n uint64) func(*Set[Change], Link, *registration[Change]) {
		return func(s *Set[Change], l Link, reg *registration[Change]) {
			s.read(l, reg, &State{Present: true, Value: []byte("v"), Version: at(n)})
		}
	}
	miss := func(s *Set[Change], l Link, reg *registration[Change]) {
		s.read(l, reg, &State{})
	}
	type words = []func(*Set[Change], Link, *registration[Change])
	for _, test := range []struct {
		name  string
		known uint64 // the version that the watchers know; 0: they know that there is no key
		first bool   // or they know nothing: this is the first registration
		words words
		want  string
	}{
		{"first: the key as it is", 0, true, words{hit(1)}, ""},
		{"first: no key", 0, true, words{miss}, ""},
		{"first: a change after the read", 0, true, words{hit(1), set(2)}, "set 2"},
		{"first: a change that the read saw", 0, true, words{hit(1), set(1)}, ""},
		{"first: a change before the read", 0, true, words{set(1), hit(1)}, "set 1"},
		{"nothing happened", 1, false, words{hit(1), set(2)}, "set 2"},
		{"changed", 1, false, words{hit(3), set(4)}, "set 3 gap, set 4"},
		{"changed, and told late", 1, false, words{hit(3), set(2), set(3), set(4)}, "set 3 gap, set 4"},
		{"changed while registering", 1, false, words{set(4), hit(3)}, "set 4 gap"},
		{"deleted", 1, false, words{miss, set(4)}, "deleted gap, set 4"},
		{"deleted, and told late", 1, false, words{miss, deleted(3), set(4)}, "deleted gap, set 4"},
		{"deleted while registering", 1, false, words{deleted(3), miss}, "deleted 3 gap"},
		{"deleted and set while registering", 1, false, words{deleted(3), set(4), miss}, "deleted 3 gap, set 4"},
		{"set", 0, false, words{hit(3)}, "set 3 gap"},
		{"still no key", 0, false, words{miss, set(4)}, "set 4"},
		{"a redelivery", 1, false, words{hit(1), set(2), set(2), set(1)}, "set 2"},
	} {
		s, l := newSet(), &link{1}
		w := &Watch[Change]{set: s, events: make(chan Change, 10)}
		reg := &registration[Change]{key: "k", watchers: map[*Watch[Change]]struct{}{w: {}}, asked: l, known: !test.first, unsure: !test.first}
		if test.known > 0 {
			reg.present, reg.version = true, at(test.known)
		}
		s.regs["k"] = reg
		for _, word := range test.words {
			word(s, l, reg)
		}
		if got := told(w); got != test.want {
			t.Errorf("%s: told %q, want %q", test.name, got, test.want)
		}
	}
}

func told(w *Watch[Change]) string {
	close(w.events)
	var events []string
	for e := range w.events {
		text := "set"
		if e.Deleted {
			text = "deleted"
		}
		if !e.Version.IsZero() {
			text += " " + strings.Split(e.Version.String(), ":")[0]
		}
		if e.Gap {
			text += " gap"
		}
		events = append(events, text)
	}
	return strings.Join(events, ", ")
}

// What comes on a connection that the registration has left is not for it.
func TestNotificationsOfAnEarlierConnection(t *testing.T) {
	t.Parallel()
	s, now, earlier := newSet(), &link{1}, &link{2}
	w := &Watch[Change]{set: s, events: make(chan Change, 1)}
	s.regs["k"] = &registration[Change]{key: "k", watchers: map[*Watch[Change]]struct{}{w: {}}, asked: now}
	s.Notified(earlier, Change{Key: "k"})
	s.Notified(now, Change{Key: "another"})
	if len(w.events) != 0 {
		t.Error("it was told")
	}
}
