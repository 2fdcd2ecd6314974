package restore

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/retained"
	"github.com/holdfast-mqtt/holdfast/internal/broker/routing"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// on is a Router on a journal, which has what write has written to it.
func on(t *testing.T, write func(journal.Append)) *routing.Router {
	t.Helper()
	j, err := journal.Open(journal.Options{FS: vfs.NewMem(), Dir: "data"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	a := j.Begin()
	write(a)
	a.End(nil)
	j.WaitDurable()
	l := limits.Limits{MaxTotalQueuedBytes: 1 << 20}
	env := session.NewEnv(j, memory.NewPool(1<<30), l.WithDefaults(), slog.New(slog.DiscardHandler), func() int64 { return time.Now().UnixMilli() })
	kept := retained.New(retained.Options{Journal: j, Memory: env.Memory, Now: env.Now, Bounds: retained.Bounds{Messages: 10, Bytes: 1 << 20}})
	return routing.New(env, kept, func() []*session.Session { return nil }, nil)
}

// withMessage appends a message with a topic and no payload.
func withMessage(row []byte, topic string) []byte {
	return append(rows.AppendMessage(row, 0, len(topic), 0), topic...)
}

// A start makes sessions with subscriptions and queues of rows, and wills that are due.
// It deletes rows that belong to no session, and messages that no queue has.
func TestLoad(t *testing.T) {
	t.Parallel()
	const sid, gone, willOf, unused = 1, 2, 3, 4
	queued := rows.Queued{QoS: 1, MessageQoS: 1}
	orphans := [][]byte{rows.QueueKey(gone, 0), rows.ReceivedKey(gone, 7), rows.SubscriptionKey(gone, "t"), rows.PayloadKey(unused), rows.GroupKey("group/t")}
	rt := on(t, func(a journal.Append) {
		a.Set(rows.SessionKey("client"), (&rows.Session{SID: sid, Expiry: 60, Away: 1, Owner: "olga"}).Row())
		a.Set(rows.SubscriptionKey(sid, "t"), (&rows.Subscription{Filter: "t", QoS: 1, ID: 5}).Row())
		a.Set(rows.QueueKey(sid, 0), withMessage(queued.Append(nil), "t"))
		a.Set(rows.QueueKey(sid, 1), withMessage(queued.Append(nil), "t"))
		a.Set(rows.ReceivedKey(sid, 7), rows.ReceivedRow())
		a.Set(rows.RetainedKey([]byte("kept")), withMessage((&rows.Retained{QoS: 1, Stamp: 1, Publisher: "client"}).Append(nil), "kept"))
		a.Set(rows.WillKey(willOf), withMessage((&rows.Will{QoS: 1, Identity: []byte(`{"Username":"olga"}`)}).Row(), "last"))
		a.Set(orphans[0], withMessage(queued.Append(nil), "t"))
		a.Set(orphans[1], rows.ReceivedRow())
		a.Set(orphans[2], (&rows.Subscription{Filter: "t"}).Row())
		a.Set(orphans[3], withMessage(rows.AppendPayload(nil), "t"))
		a.Set(orphans[4], rows.GroupRow(unused))
	})
	loaded, err := Load(rt)
	if err != nil {
		t.Fatal(err)
	}
	if len(loaded.Sessions) != 1 || len(loaded.Wills) != 1 || len(loaded.Delayed) != 0 {
		t.Fatalf("%d sessions, %d wills, %d of sessions; want 1, 1, 0", len(loaded.Sessions), len(loaded.Wills), len(loaded.Delayed))
	}
	s := loaded.Sessions[0]
	s.Mu.Lock()
	if s.ID != "client" || s.Owner() != "olga" || s.Expiry != 60 || s.Away != 1 || s.Peer != nil {
		t.Errorf("the session of %q and %q, expiry %d, away since %d", s.ID, s.Owner(), s.Expiry, s.Away)
	}
	if sub := s.Subs["t"]; len(s.Subs) != 1 || sub == nil || sub.QoS != 1 || sub.ID != 5 {
		t.Errorf("its subscriptions: %+v", s.Subs)
	}
	if _, received := s.Received[7]; s.Routed.Messages != 2 || !received {
		t.Errorf("%d messages are queued, received are %v; want 2 and 7", s.Routed.Messages, s.Received)
	}
	s.Mu.Unlock()
	if w := loaded.Wills[0]; string(w.Message.Topic()) != "last" || w.Identity == nil || w.Identity.Username != "olga" {
		t.Errorf("the will: %+v", w)
	}
	if got := rt.LastSID.Load(); got < willOf {
		t.Errorf("the next session gets number %d, which is in use", got+1)
	}
	rt.Journal.WaitDurable()
	for _, key := range orphans {
		if _, found, err := rt.Journal.Get(key); found || err != nil {
			t.Errorf("%q is still there (%v)", key, err)
		}
	}
	var left []string
	if err := rt.Journal.Iterate([]byte("a"), []byte("z"), func(key, _ []byte) bool { left = append(left, string(key[:1])); return true }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"i", "q", "q", "s", "t", "u", "w"}; !slices.Equal(slices.DeleteFunc(left, func(kind string) bool { return kind == "m" }), want) {
		t.Errorf("rows of the kinds %v are left, want %v", left, want)
	}
}

// Rows that make no sense prevent the start.
func TestLoadRefusesRowsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(journal.Append){
		"an unknown form": func(a journal.Append) { a.Set(rows.SessionKey("client"), []byte{99}) },
		"a choice that does not exist": func(a journal.Append) {
			a.Set(rows.SessionKey("client"), (&rows.Session{SID: 1, QueueFull: 99}).Row())
		},
		"a message that is missing": func(a journal.Append) {
			a.Set(rows.SessionKey("client"), (&rows.Session{SID: 1}).Row())
			a.Set(rows.QueueKey(1, 0), (&rows.Queued{QoS: 1, Number: 9}).Append(nil))
		},
		"an identity that is none": func(a journal.Append) {
			a.Set(rows.WillKey(1), withMessage((&rows.Will{Identity: []byte("{")}).Row(), "t"))
		},
	} {
		if _, err := Load(on(t, write)); err == nil {
			t.Errorf("%s: it was loaded", name)
		}
	}
}
