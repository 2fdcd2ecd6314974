package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// On the requester's connection the notification of a change precedes the reply
// (protocol, section 6); other watchers come after it.
func TestOrderOfOneChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a, b, c := w.client("a"), w.client("b"), w.client("c")
	b.wait("WATCH k")
	a.wait("WATCH k")
	c.wait("WATCH k")
	c.wait("WATCH other")
	a.wait("WATCH k") // again: still one notification per change
	w.log.take()

	a.wait("SET k v")
	w.settle()
	w.expect("a: event k = v", "a: SET k v -> OK", "b: event k = v", "c: event k = v")
	a.wait("SET k v") // an equal value too
	w.settle()
	w.expect("a: event k = v", "a: SET k v -> OK", "b: event k = v", "c: event k = v")
	b.wait("DEL k")
	w.settle()
	w.expect("b: event k deleted", "b: DEL k -> 1", "a: event k deleted", "c: event k deleted")
	b.wait("DEL k")
	a.wait("SET other v NX")
	w.settle()
	w.expect("b: DEL k -> 0", "a: SET other v NX -> OK", "c: event other = v")
}

func TestStopFollowsEveryEarlierEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a, b := w.client("a"), w.client("b")
	b.wait("WATCH k")
	w.log.take()
	w.disk.Hold()
	a.do("SET k 1")
	w.disk.AwaitSync()
	a.do("SET k 2")
	stopped := b.do("STOP k")
	a.do("SET k 3")
	b.do("WATCH k")
	a.do("DEL k")
	if stopped.replied() {
		t.Error("STOP was answered before the events that it follows")
	}
	w.disk.Release(nil)
	w.settle()
	w.expect(
		"a: SET k 1 -> OK", "b: event k = 1",
		"a: SET k 2 -> OK", "a: SET k 3 -> OK", "b: event k = 2",
		"b: STOP k -> OK", "b: WATCH k -> OK",
		"a: DEL k -> 1", "b: event k deleted",
	)
	if got := show(b.wait("STOP k")); got != "OK" {
		t.Errorf("STOP -> %s", got)
	}
	if got := show(b.wait("STOP k")); got != "0" {
		t.Errorf("second STOP -> %s", got)
	}
}

// The watcher's session waits for the batch already when another client's change joins it:
// what the watcher is told of that change must precede the replies that come after it.
func TestRepliesFollowEventsOfTheSameBatch(t *testing.T) {
	t.Parallel()
	for _, last := range []struct{ command, reply string }{
		{"STOP k", "OK"}, {"GET k", "1"}, {"SET k 2 NX", "not applied"}, {"SET k 2", "OK"}, {"LOAD k m", "0 1 nil"},
	} {
		w := newWorld(t, Options{})
		a, b := w.client("a"), w.client("b")
		b.wait("WATCH k")
		w.log.take()
		w.disk.Hold()
		a.do("SET other v")
		w.disk.AwaitSync() // what comes now is in one batch
		b.do("SET mine v")
		a.do("SET k 1")
		b.do(last.command)
		w.disk.Release(nil)
		w.settle()
		var heard []string
		for _, line := range w.log.take() {
			if strings.HasPrefix(line, "b: ") && line != "b: event k = 2" {
				heard = append(heard, line)
			}
		}
		want := []string{"b: SET mine v -> OK", "b: event k = 1", "b: " + last.command + " -> " + last.reply}
		if !slices.Equal(heard, want) {
			t.Errorf("%q, want %q", heard, want)
		}
	}
}

func TestNoEventOfAnEarlierChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a, b := w.client("a"), w.client("b")
	a.wait("SET lease v PX=100")
	w.settle()
	w.log.take()
	w.disk.Hold()
	a.do("SET k 1")
	b.do("WATCH k")
	// A key whose time ran out before the registration was gone before it.
	w.clock.advance(100)
	b.do("WATCH lease")
	w.disk.Release(nil)
	w.e.ExpireDue()
	w.settle()
	w.expect("b: WATCH k -> OK", "b: WATCH lease -> OK", "a: SET k 1 -> OK")
}

func TestClosedSessionsHearNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a, b := w.client("a"), w.client("b")
	b.wait("WATCH k")
	b.wait("WATCH l")
	w.log.take()
	w.disk.Hold()
	a.do("SET k v")
	pending := b.do("SET x v")
	b.Close()
	b.Close()
	a.do("SET l v")
	w.disk.Release(nil)
	<-pending.done // replies still come
	w.settle()
	lines := w.log.take()
	slices.Sort(lines) // there may be one batch or two
	if want := []string{"a: SET k v -> OK", "a: SET l v -> OK", "b: SET x v -> OK"}; !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
	b.wait("WATCH k") // is not registered any more
	if n := w.e.Stats().Watches; n != 0 {
		t.Errorf("%d watches are left", n)
	}
}

func TestSessionWithoutASink(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.open(Origin{ID: "a"})
	a.wait("WATCH k")
	a.wait("SET k v")
	w.settle()
	w.expect("a: WATCH k -> OK", "a: SET k v -> OK")
}

func TestWatchesHaveABound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxWatches: 2})
	a := w.client("a")
	for _, step := range [][2]string{
		{"WATCH a", "OK"}, {"WATCH b", "OK"}, {"WATCH c", statestore.QuotaExceeded.Error()}, {"WATCH a", "OK"},
		{"STOP a", "OK"}, {"WATCH c", "OK"}, {"STOP c", "OK"}, {"STOP b", "OK"},
	} {
		if got := show(a.wait(step[0])); got != step[1] {
			t.Errorf("%s -> %s, want %s", step[0], got, step[1])
		}
	}
	if n := w.records(); n != 0 {
		t.Errorf("%d records are left", n)
	}
}

func TestDeniedCommandsDoNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	for _, text := range []string{"SET k v", "GET k", "DEL k", "WATCH k", "STOP k", "SCAN *"} {
		cmd := parse(t, text, startMs)
		cmd.Denied = true
		got := &answer{c: a, label: text, done: make(chan struct{})}
		a.run(cmd, got)
		<-got.done
		if show(&got.reply) != "not authorized" {
			t.Errorf("%s -> %s", text, show(&got.reply))
		}
	}
	if w.records() != 0 || w.e.Stats().Watches != 0 {
		t.Errorf("%d records, %+v", w.records(), w.e.Stats())
	}
}

// The list of watchers that a change has taken stays as it was until the change is
// complete, although watches begin and end meanwhile; and a new list is that of a plain set.
func TestWatchersKeepWhatAChangeHasSeen(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type snapshot struct {
			batch journal.Seq
			seen  []*watch
			copy  []*watch
		}
		var ws watchers
		var model []*watch
		var pending []snapshot
		var batch, complete journal.Seq
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"add", "add", "remove", "change", "complete"}).Draw(t, "step") {
			case "add":
				w := &watch{}
				ws.Add(w)
				model = append(model, w)
			case "remove":
				if len(model) > 0 {
					i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
					ws.Remove(model[i], complete)
					model = slices.Delete(model, i, i+1)
				}
			case "change":
				batch++
				ws.Shared = batch
				pending = append(pending, snapshot{batch, ws.All, slices.Clone(ws.All)})
			case "complete":
				if len(pending) > 0 {
					complete = pending[0].batch
					pending = pending[1:]
				}
			}
			for _, s := range pending {
				if !slices.Equal(s.seen, s.copy) {
					t.Fatal("a list that a pending change has seen was written to")
				}
			}
			if len(ws.All) != len(model) {
				t.Fatalf("%d watchers, want %d", len(ws.All), len(model))
			}
			for i, w := range ws.All {
				if w.index != i || !slices.Contains(model, w) {
					t.Fatal("the list is not the set")
				}
			}
		}
	})
}

func TestManyWatchersOfOneKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.client("a")
	var clients []*client
	for i := range 1000 {
		c := w.client(fmt.Sprint(i))
		c.wait("WATCH k")
		clients = append(clients, c)
	}
	w.log.take()
	w.disk.Hold()
	a.do("SET k v")
	for _, c := range clients[:500] {
		c.Close()
	}
	a.do("SET k w")
	w.disk.Release(nil)
	w.settle()
	if got := len(w.log.take()); got != 2+500+500 {
		t.Errorf("%d lines, want two replies and 500 events each", got)
	}
}

// All watchers of a large value are told the same bytes, which stay as they are
// although the key has another value by then.
func TestLargeValuesAreToldWithoutCopies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	var told []statestore.Event
	for range 3 {
		w.open(Origin{Sink: sinkFunc(func(e *statestore.Event) { told = append(told, *e) })}).wait("WATCH k")
	}
	large := strings.Repeat("v", table.MaxSlot)
	w.disk.Hold()
	a := w.client("a")
	a.do("SET k " + large)
	a.do("SET k small")
	a.do("SET k " + strings.Repeat("w", table.MaxSlot))
	w.disk.Release(nil)
	w.settle()
	if len(told) != 9 {
		t.Fatalf("%d events, want 9", len(told))
	}
	for i, e := range told[:3] {
		if !e.Lasting || string(e.Value) != large || &e.Value[0] != &told[0].Value[0] {
			t.Errorf("event %d: lasting %v, %d bytes, not the same as the first watcher's", i, e.Lasting, len(e.Value))
		}
	}
	if told[3].Lasting {
		t.Error("a small value is said to last")
	}
}
