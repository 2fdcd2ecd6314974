package engine

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"holdfast/hlc"
	"holdfast/internal/journal"
	"holdfast/internal/journal/journaltest"
	"holdfast/internal/statestore"
)

const startMs = 1_700_000_000_000

// fakeClock stands still until it is moved.
type fakeClock struct {
	wallMs  atomic.Int64
	sinceMs atomic.Int64
}

func newFakeClock() *fakeClock {
	c := &fakeClock{}
	c.wallMs.Store(startMs)
	return c
}

func (c *fakeClock) WallMs() int64 { return c.wallMs.Load() }
func (c *fakeClock) SinceStart() time.Duration {
	return time.Duration(c.sinceMs.Load()) * time.Millisecond
}

func (c *fakeClock) advance(ms int64) {
	c.wallMs.Add(ms)
	c.sinceMs.Add(ms)
}

// world is an engine with everything around it, and a log of what it said.
type world struct {
	t     testing.TB
	mem   *vfs.MemFS
	disk  *journaltest.Disk
	j     *journal.Journal
	e     *Local
	clock *fakeClock
	o     Options
	log   *logbook
}

func newWorld(t testing.TB, o Options) *world {
	w := &world{t: t, mem: vfs.NewCrashableMem(), clock: newFakeClock(), o: o, log: &logbook{}}
	w.start()
	t.Cleanup(w.stop)
	return w
}

func (w *world) start() {
	w.t.Helper()
	w.disk = journaltest.NewDisk(w.mem)
	j, err := journal.Open(journal.Options{
		Dir:    "data",
		FS:     w.disk,
		Logger: slog.New(slog.DiscardHandler),
		Fatal:  func(err error) { w.t.Errorf("commit failed: %v", err) },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.o.Journal, w.o.Clock = j, w.clock
	if w.o.Logger == nil {
		w.o.Logger = slog.New(slog.DiscardHandler)
	}
	e, err := Open(w.o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.j, w.e = j, e
	e.Close() // tests call ExpireDue themselves
}

func (w *world) stop() {
	if w.e == nil {
		return
	}
	w.e.Close()
	w.disk.Release(nil)
	if err := w.j.Close(); err != nil {
		w.t.Error(err)
	}
	w.e = nil
}

// restart is a clean one; crash loses what was not synced.
func (w *world) restart() {
	w.stop()
	w.start()
}

func (w *world) crash() {
	left := w.mem.CrashClone(vfs.CrashCloneCfg{})
	w.stop()
	w.mem = left
	w.start()
}

// settle returns when everything that was done is durable and told.
func (w *world) settle() {
	done := make(chan struct{})
	s := w.j.Begin().End(waiter(func() { close(done) }))
	<-done
	for s > w.j.Complete() {
		again := make(chan struct{})
		if w.j.Await(s, waiter(func() { close(again) })) {
			<-again
		}
	}
}

type waiter func()

func (f waiter) Durable(journal.Seq) { f() }

// logbook takes down replies and events in the order in which they come.
type logbook struct {
	mu    sync.Mutex
	lines []string
}

func (l *logbook) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

// take returns what was added since the last time.
func (l *logbook) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

// client is a session that logs what it hears.
type client struct {
	w    *world
	name string
	Session
}

func (w *world) client(name string) *client {
	c := &client{w: w, name: name}
	c.Session = w.e.Open(Origin{ID: name, Verified: true, Sink: c})
	return c
}

func (c *client) Event(e *statestore.Event) {
	if e.Kind == statestore.KeyDeleted {
		c.w.log.add("%s: event %s deleted", c.name, e.Key)
		return
	}
	c.w.log.add("%s: event %s = %s", c.name, e.Key, e.Value)
}

func (c *client) Lost() { c.w.log.add("%s: lost", c.name) }

// answer is a Completion that can be waited for.
type answer struct {
	c     *client
	label string
	held  bool
	done  chan struct{}
	reply statestore.Reply // a copy; valid once done is closed
}

func (a *answer) Hold() {
	if a.held {
		a.c.w.t.Errorf("%s: Hold was called twice", a.label)
	}
	a.held = true
}

func (a *answer) Reply(r *statestore.Reply) {
	a.reply = *r
	a.reply.Value, a.reply.Context = bytes.Clone(r.Value), bytes.Clone(r.Context)
	a.c.w.log.add("%s: %s -> %s", a.c.name, a.label, show(r))
	close(a.done) // panics if Reply is called twice
}

func (a *answer) ReplyWhenDurable(batch journal.Seq, r *statestore.Reply) {
	a.held = true
	replyWhenDurable(a.c.w.j, batch, a, r)
}

// replyWhenDurable does for a Completion what the broker does for a connection.
func replyWhenDurable(j *journal.Journal, batch journal.Seq, c Completion, r *statestore.Reply) {
	kept := *r
	kept.Value, kept.Context = bytes.Clone(r.Value), bytes.Clone(r.Context)
	if !j.Await(batch, waiter(func() { c.Reply(&kept) })) {
		c.Reply(&kept)
	}
}

func (a *answer) replied() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

func show(r *statestore.Reply) string {
	switch r.Kind {
	case statestore.OK:
		return "OK"
	case statestore.NotApplied:
		return "not applied"
	case statestore.Value:
		return string(r.Value)
	case statestore.Nil:
		return "nil"
	case statestore.Count:
		return fmt.Sprint(r.Count)
	case statestore.Error:
		return r.Fault.Error()
	case statestore.Conflict:
		return "conflict"
	case statestore.Loaded:
		return fmt.Sprintf("%d %s %s", r.Count, showBlob(r.Value), showBlob(r.Context))
	case statestore.Page:
		return fmt.Sprintf("%s more=%v", r.Keys, len(r.Next) > 0)
	}
	return "no reply"
}

func showBlob(b []byte) string {
	if b == nil {
		return "nil"
	}
	return string(b)
}

// do gives a command, as text: verb, key, and what the verb needs.
//
//	SET k v [NX|NEX] [PX=ms] [FT=counter]    DEL k    VDEL k v    GET k
//	WATCH k    STOP k    SCAN pattern
//	LOAD k m    STORE k v m version [CTX=blob] [KEEP=ms] [FT=counter]    DONE k m
func (c *client) do(text string) *answer {
	a := &answer{c: c, label: text, done: make(chan struct{})}
	cmd := parse(c.w.t, text, c.w.clock.WallMs())
	c.Do(cmd, a)
	for _, b := range [][]byte{cmd.Key, cmd.Value, cmd.Compare, cmd.Message, cmd.Context} {
		clear(b) // they were valid during Do only
	}
	return a
}

// wait gives a command and waits for its reply.
func (c *client) wait(text string) *statestore.Reply {
	a := c.do(text)
	<-a.done
	return &a.reply
}

func parse(t testing.TB, text string, nowMs int64) *statestore.Command {
	fields := strings.Fields(text)
	cmd := &statestore.Command{Key: []byte(fields[1])}
	switch fields[0] {
	case "GET":
		cmd.Verb = statestore.Get
	case "DEL":
		cmd.Verb = statestore.Del
	case "WATCH", "STOP":
		cmd.Verb, cmd.Stop = statestore.KeyNotify, fields[0] == "STOP"
	case "SCAN":
		cmd.Verb = statestore.Scan
	case "VDEL":
		cmd.Verb = statestore.VDel
	case "SET":
		cmd.Verb = statestore.Set
		cmd.Time = statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: uint64(nowMs), Node: "client"}}
	case "LOAD", "DONE", "STORE":
		return parseMessage(t, fields, nowMs)
	default:
		t.Fatalf("no such verb: %s", text)
	}
	options := fields[2:]
	if cmd.Verb == statestore.Set || cmd.Verb == statestore.VDel {
		cmd.Value, options = []byte(fields[2]), fields[3:]
	}
	for _, o := range options {
		var n uint64
		switch {
		case o == "NX":
			cmd.Condition = statestore.IfAbsent
		case o == "NEX":
			cmd.Condition, cmd.Compare = statestore.IfAbsentOrEqual, cmd.Value
		case scan(o, "PX=%d", &cmd.ExpiryMs):
		case scan(o, "FT=%d", &n):
			cmd.Token = statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: startMs, Counter: n, Node: "client"}}
		default:
			t.Fatalf("no such option: %s", o)
		}
	}
	return cmd
}

func parseMessage(t testing.TB, fields []string, nowMs int64) *statestore.Command {
	cmd := &statestore.Command{Key: []byte(fields[1])}
	switch fields[0] {
	case "LOAD":
		cmd.Verb, cmd.Message = statestore.Load, []byte(fields[2])
		return cmd
	case "DONE":
		cmd.Verb, cmd.Message = statestore.Done, []byte(fields[2])
		return cmd
	}
	cmd.Verb, cmd.Value, cmd.Message = statestore.Store, []byte(fields[2]), []byte(fields[3])
	cmd.Time = statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: uint64(nowMs), Node: "client"}}
	cmd.Version.Given, cmd.Version.Absent = true, fields[4] == "-"
	if !cmd.Version.Absent {
		var err error
		if cmd.Version.At, err = hlc.Parse(fields[4]); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range fields[5:] {
		var n uint64
		switch {
		case strings.HasPrefix(o, "CTX="):
			cmd.Context = []byte(o[len("CTX="):])
		case scan(o, "KEEP=%d", &cmd.KeepMs):
		case scan(o, "FT=%d", &n):
			cmd.Token = statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: startMs, Counter: n, Node: "client"}}
		default:
			t.Fatalf("no such option: %s", o)
		}
	}
	return cmd
}

func scan(text, format string, into any) bool {
	n, err := fmt.Sscanf(text, format, into)
	return n == 1 && err == nil
}

// expect checks the log since the last time.
func (w *world) expect(want ...string) {
	w.t.Helper()
	if got := w.log.take(); !slices.Equal(got, want) {
		w.t.Errorf("log:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// records counts what is in memory, tombstones and bare watches included.
func (w *world) records() (n int) {
	for i := range w.e.shards {
		sh := &w.e.shards[i]
		sh.mu.Lock()
		n += sh.table.len()
		for key := range sh.watchers {
			if sh.table.find([]byte(key), maphash.String(w.e.seed, key)).ref == 0 {
				n++
			}
		}
		sh.mu.Unlock()
	}
	return n
}

// deadlines counts those in the shard of a key.
func (w *world) deadlines(key string) int {
	sh, _ := w.e.shard([]byte(key))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return len(sh.table.deadlines)
}
