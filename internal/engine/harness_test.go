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

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/journal/journaltest"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
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

type calling struct{ f func() }

func (c *calling) Durable(journal.Seq) { c.f() }

func waiter(f func()) journal.Waiter { return &calling{f} }

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

// client is a session whose replies are logged when they may leave, as the broker's
// connection gives them.
type client struct {
	w    *world
	name string
	Session
	replies replies
}

func (w *world) client(name string) *client {
	return w.open(Origin{ID: name, Verified: true, Sink: &logSink{w, name}})
}

// open opens a session that takes replies.
func (w *world) open(o Origin) *client {
	c := &client{w: w, name: o.ID, replies: replies{j: w.j}}
	o.Waiter = &c.replies
	c.Session = w.e.Open(o)
	return c
}

// logSink logs what a client hears.
type logSink struct {
	w    *world
	name string
}

func (c *logSink) Event(e *statestore.Event) {
	if e.Kind == statestore.KeyDeleted {
		c.w.log.add("%s: event %s deleted", c.name, e.Key)
		return
	}
	c.w.log.add("%s: event %s = %s", c.name, e.Key, e.Value)
}

func (c *logSink) Lost() { c.w.log.add("%s: lost", c.name) }

// replies are those of one session, given in the order of its commands, each when what it
// waits for is durable.
type replies struct {
	j *journal.Journal

	mu       sync.Mutex
	newest   journal.Seq // that was asked for
	asked    int
	answered int
	waiting  []waitingReply
}

type waitingReply struct {
	ask  int
	give func()
}

// Durable implements journal.Waiter.
func (rs *replies) Durable(journal.Seq) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.answered++
	rs.giveReady()
}

func (rs *replies) giveReady() {
	for len(rs.waiting) > 0 && rs.waiting[0].ask <= rs.answered {
		rs.waiting[0].give()
		rs.waiting = rs.waiting[1:]
	}
}

// do runs a command; give is called with the reply, which lasts, when it may leave.
func (rs *replies) do(s Session, cmd *statestore.Command, give func(*statestore.Reply)) (waited bool) {
	call := &Call{Command: *cmd}
	wait := s.Do(call)
	reply := *call.Reply()
	reply.Value, reply.Context = bytes.Clone(reply.Value), bytes.Clone(reply.Context)
	call.Clear()
	return rs.giveAfter(wait, func() { give(&reply) })
}

// giveAfter has give called when what wait says has come, in the order of the calls.
func (rs *replies) giveAfter(wait Wait, give func()) (waited bool) {
	waits := wait.Asked || wait.Batch > rs.j.Complete()
	rs.mu.Lock()
	ask := waits && !wait.Asked && wait.Batch > rs.newest
	if ask || wait.Asked {
		rs.asked++
		rs.newest = max(rs.newest, wait.Batch)
	}
	w := waitingReply{give: give}
	if waits {
		w.ask = rs.asked
	}
	rs.waiting = append(rs.waiting, w)
	rs.giveReady()
	rs.mu.Unlock()
	if ask && !rs.j.Await(wait.Batch, rs) {
		rs.Durable(wait.Batch)
	}
	return waits
}

// answer is a reply that can be waited for.
type answer struct {
	c      *client
	label  string
	waited bool // for the journal
	done   chan struct{}
	reply  statestore.Reply // valid once done is closed
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
	c.run(cmd, a)
	for _, b := range [][]byte{cmd.Key, cmd.Value, cmd.Compare, cmd.Message, cmd.Context} {
		clear(b) // they were valid during Do only
	}
	return a
}

// run gives a command.
func (c *client) run(cmd *statestore.Command, a *answer) {
	a.waited = c.replies.do(c.Session, cmd, func(r *statestore.Reply) {
		a.reply = *r
		c.w.log.add("%s: %s -> %s", c.name, a.label, show(r))
		close(a.done) // panics if there are two replies
	})
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
		if len(fields) > 3 {
			cmd.Context = []byte(strings.TrimPrefix(fields[3], "CTX="))
		}
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
		case scan(o, "KEEP=%d", &cmd.KeepMs), scan(o, "PX=%d", &cmd.ExpiryMs):
		case o == "DEL":
			cmd.Remove = true
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
		n += sh.table.Len()
		for key := range sh.watchers {
			if !sh.table.Get([]byte(key), maphash.String(w.e.seed, key)).Exists() {
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
	return sh.table.Deadlines()
}
