package store

import (
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/history"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// The ledger, shown what a broken broker would have answered.
func TestLedger(t *testing.T) {
	t.Parallel()
	fresh := known{}
	committed := known{version: issued(5)}
	asked := known{version: issued(5), asked: true}
	done := known{version: issued(5), asked: true, done: true}
	loaded := func(status int64, state, context string, version uint64) history.Answer {
		return history.Answer{Fate: history.Answered, Kind: statestore.Loaded, Count: status, Value: state, Context: context, Version: issued(version)}
	}
	count := func(n int64, version uint64) history.Answer {
		return history.Answer{Fate: history.Answered, Kind: statestore.Count, Count: n, Version: issued(version)}
	}
	for name, c := range map[string]struct {
		verb   statestore.Verb
		before known
		answer history.Answer
		want   string // empty: it is sound
	}{
		"new":                            {statestore.Load, fresh, loaded(0, "m1 ", "", 4), ""},
		"duplicate":                      {statestore.Load, committed, loaded(1, "m1 ", "m2 on m1 ", 5), ""},
		"duplicate of another processor": {statestore.Load, fresh, loaded(1, "m1 ", "m2 on m1 ", 5), ""},
		"DONE under way":                 {statestore.Load, asked, loaded(1, "m1 ", "m2 on m1 ", 5), ""},
		"confirmed":                      {statestore.Load, done, loaded(2, "", "", 5), ""},
		"forgotten":                      {statestore.Load, committed, loaded(0, "m1 ", "", 4), "forgotten"},
		"forgotten, but not its effect":  {statestore.Load, fresh, loaded(0, "m1 m2 ", "", 5), "forgotten"},
		"DONE undone":                    {statestore.Load, done, loaded(1, "m1 ", "m2 on m1 ", 5), "done, and is not"},
		"DONE by no processor":           {statestore.Load, committed, loaded(2, "", "", 5), "no processor sent DONE"},
		"state of another time":          {statestore.Load, committed, loaded(1, "", "m2 on m1 ", 5), "the state before it"},
		"state after it":                 {statestore.Load, committed, loaded(1, "m1 m2 ", "m2 on m1 m2 ", 5), "the state before it"},
		"another version":                {statestore.Load, committed, loaded(1, "m1 ", "m2 on m1 ", 6), "and now as"},
		"stored":                         {statestore.Store, fresh, ok(5), ""},
		"stored, as another has seen":    {statestore.Store, fresh, count(0, 5), ""},
		"another was faster":             {statestore.Store, fresh, notApplied(4), ""},
		"committed twice":                {statestore.Store, committed, ok(6), "and again as"},
		"refused though committed":       {statestore.Store, committed, notApplied(6), "is refused"},
		"refused for a fault":            {statestore.Store, fresh, refusedWith(statestore.TokenRequired), "was refused"},
		"DONE":                           {statestore.Done, committed, count(1, 0), ""},
		"DONE of what is forgotten":      {statestore.Done, committed, count(0, 0), "forgotten"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &input{key: "k", id: "m2", known: c.before}
			err := NewLedger().enter(&stepped{step{Request: history.Request{Verb: c.verb, Key: "k"}, message: m, before: c.before}, c.answer})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestStateIsComplete(t *testing.T) {
	t.Parallel()
	messages := []*input{{id: "m0", known: known{version: issued(3)}}, {id: "m1", known: known{version: issued(4)}}, {id: "m2"}}
	for state, want := range map[string]string{
		"m1 m0 ":       "",
		"m0 ":          "m1 of key k was committed 0 times",
		"m0 m1 m0 ":    "m0 of key k was committed 2 times",
		"m0 m1 m2 ":    "m2 of key k was committed 1 times, want 0",
		"m0 m1 other ": "no processor sent",
	} {
		err := complete("k", state, messages)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", state, err, want)
		}
	}
}

func ok(version uint64) history.Answer {
	return history.Answer{Fate: history.Answered, Kind: statestore.OK, Version: issued(version)}
}

func notApplied(version uint64) history.Answer {
	return history.Answer{Fate: history.Answered, Kind: statestore.NotApplied, Version: issued(version)}
}

func refusedWith(f statestore.Fault) history.Answer {
	return history.Answer{Fate: history.Answered, Kind: statestore.Error, Fault: f}
}

// issued is the n-th version that a store issued.
func issued(n uint64) hlc.Timestamp {
	if n == 0 {
		return hlc.Timestamp{}
	}
	return hlc.Timestamp{Wall: n, Counter: 1, Node: "n"}
}
