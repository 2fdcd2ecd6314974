package statestore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// store keeps keys and runs the rules on them, as the engine does, one command
// after the other. Its wall clock and the clock of its deadlines are moved by
// the test.
type store struct {
	t     reporter
	cells map[string]*statestore.Entry
	memos map[[2]string]*statestore.Memo // by key and message
	env   statestore.Env
	res   statestore.Result
}

// reporter is what a test of rapid and one of testing have in common.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
}

// start is the documents' example: October 3, 11:07:05 PM GMT.
const start = 1696374425000

const day = 24 * 60 * 60 * 1000

func newStore(t reporter) *store {
	return &store{
		t:     t,
		cells: map[string]*statestore.Entry{},
		memos: map[[2]string]*statestore.Memo{},
		env: statestore.Env{
			NowMs:     start,
			WallMs:    start,
			Node:      "StateStore",
			MaxSkewMs: 60_000,
			KeepMs:    7 * day,
			MaxKeepMs: 30 * day,
			Room:      statestore.Room{Keys: 1000, Bytes: 1 << 20, Memos: 1 << 20},
		},
	}
}

// do runs one command and puts what became of it in one line: the reply as it
// would be spelled, @version if it has one, then the events.
func (s *store) do(cmd *statestore.Command) string {
	s.t.Helper()
	key, message := string(cmd.Key), [2]string{string(cmd.Key), string(cmd.Message)}
	statestore.Apply(cmd, statestore.Cell{Entry: s.cells[key], Memo: s.memos[message]}, &s.env, &s.res)
	if s.res.MemoChanged {
		s.res.Memo.Own()
		s.memos[message] = s.res.Memo
	} else if s.res.Memo != s.memos[message] {
		s.t.Errorf("nothing has changed, but: %+v", s.res.Memo)
	}
	return s.commit(key) + s.events()
}

func (s *store) expire(key string) string {
	s.t.Helper()
	due := statestore.Expire([]byte(key), s.cells[key], &s.env, &s.res)
	if due != s.res.Changed {
		s.t.Errorf("Expire(%s) = %v, but Changed is %v", key, due, s.res.Changed)
	}
	return strings.TrimSpace(s.commit(key) + s.events())
}

// commit takes the result over and spells its reply.
func (s *store) commit(key string) string {
	s.t.Helper()
	if !s.res.Changed && (s.res.Entry != s.cells[key] || s.res.NumEvents > 0 || s.res.Last != s.env.Last) {
		s.t.Errorf("nothing has changed, but: %+v", s.res)
	}
	s.env.Last = s.res.Last
	if s.res.Entry == nil {
		delete(s.cells, key)
	} else if s.res.Changed {
		s.cells[key] = s.res.Entry.Clone()
	}
	return spell(&s.res.Reply)
}

func spell(r *statestore.Reply) string {
	var text string
	switch r.Kind {
	case statestore.OK:
		text = "OK"
	case statestore.NotApplied:
		text = "-1"
	case statestore.Conflict:
		text = "conflict"
	case statestore.Loaded:
		text = fmt.Sprintf("%d %s %s", r.Count, spellBlob(r.Value), spellBlob(r.Context))
	case statestore.Value:
		text = fmt.Sprintf("%q", r.Value)
	case statestore.Nil:
		text = "nil"
	case statestore.Count:
		text = fmt.Sprint(r.Count)
	case statestore.Error:
		text = r.Fault.Error()
	}
	if !r.Version.IsZero() {
		text += " @" + short(r.Version)
	}
	return text
}

// spellBlob tells an empty blob from nil.
func spellBlob(b []byte) string {
	if b == nil {
		return "nil"
	}
	return fmt.Sprintf("%q", b)
}

func (s *store) events() string {
	var b strings.Builder
	for _, ev := range s.res.Events[:s.res.NumEvents] {
		switch ev.Kind {
		case statestore.KeySet:
			fmt.Fprintf(&b, " | SET %s=%s @%s", ev.Key, ev.Value, short(ev.Version))
		case statestore.KeyDeleted:
			fmt.Fprintf(&b, " | DELETE %s @%s", ev.Key, short(ev.Version))
		}
	}
	return b.String()
}

// short spells a version by its distance from start in milliseconds.
func short(v hlc.Timestamp) string {
	text := fmt.Sprintf("%d:%d", int64(v.Wall)-start, v.Counter)
	if v.Node != "StateStore" {
		text += ":" + v.Node
	}
	return text
}

func (s *store) want(cmd *statestore.Command, want string) {
	s.t.Helper()
	if got := s.do(cmd); got != want {
		s.t.Errorf("%v %s:\n got %s\nwant %s", cmd.Verb, cmd.Key, got, want)
	}
}

// advance moves both clocks.
func (s *store) advance(ms int64) {
	s.env.NowMs += ms
	s.env.WallMs += ms
}

// at is a stamp of a client, by its distance from start.
func at(ms int64, counter uint64) statestore.Stamp {
	return statestore.Stamp{
		State: statestore.Given,
		At:    hlc.Timestamp{Wall: uint64(start + ms), Counter: counter, Node: "client"},
	}
}

var malformed = statestore.Stamp{State: statestore.Malformed}

// set is SET k value with a timestamp in the past.
func set(value string, options ...func(*statestore.Command)) *statestore.Command {
	cmd := &statestore.Command{Verb: statestore.Set, Key: []byte("k"), Value: []byte(value), Time: at(-1, 0)}
	return with(cmd, options)
}

func get() *statestore.Command {
	return &statestore.Command{Verb: statestore.Get, Key: []byte("k")}
}

func del(options ...func(*statestore.Command)) *statestore.Command {
	return with(&statestore.Command{Verb: statestore.Del, Key: []byte("k")}, options)
}

func vdel(value string, options ...func(*statestore.Command)) *statestore.Command {
	return with(&statestore.Command{Verb: statestore.VDel, Key: []byte("k"), Value: []byte(value)}, options)
}

func with(cmd *statestore.Command, options []func(*statestore.Command)) *statestore.Command {
	for _, option := range options {
		option(cmd)
	}
	return cmd
}

func nx(c *statestore.Command)  { c.Condition = statestore.IfAbsent }
func nex(c *statestore.Command) { c.Condition, c.Compare = statestore.IfAbsentOrEqual, c.Value }
func nexOf(compare string) func(*statestore.Command) {
	return func(c *statestore.Command) {
		c.Condition, c.Compare = statestore.IfAbsentOrEqual, []byte(compare)
	}
}
func px(ms int64) func(*statestore.Command) {
	return func(c *statestore.Command) { c.ExpiryMs = ms }
}
func ver(ms int64, counter uint64) func(*statestore.Command) {
	return func(c *statestore.Command) {
		c.Version = statestore.VersionCheck{Given: true, At: hlc.Timestamp{Wall: uint64(start + ms), Counter: counter, Node: "StateStore"}}
	}
}
func verAbsent(c *statestore.Command) {
	c.Version = statestore.VersionCheck{Given: true, Absent: true}
}
func time(s statestore.Stamp) func(*statestore.Command) {
	return func(c *statestore.Command) { c.Time = s }
}
func token(s statestore.Stamp) func(*statestore.Command) {
	return func(c *statestore.Command) { c.Token = s }
}
func denied(c *statestore.Command) { c.Denied = true }

// step is a command and what is to come of it.
type step struct {
	cmd  *statestore.Command
	want string
}

// rule is one sentence of the protocol and commands that show it, run in order
// on a store of their own.
type rule struct {
	says  string
	steps []step
}

func checkRules(t *testing.T, rules []rule) {
	t.Helper()
	for _, r := range rules {
		t.Run(r.says, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			for _, step := range r.steps {
				s.want(step.cmd, step.want)
			}
		})
	}
}
