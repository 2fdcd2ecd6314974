package partition

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/history"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// slowLeader are nodes of which the first, as the leader, keeps its office for long after it was
// cut off, while the others elect another one early. No cluster may be set up so that relies on the
// lease: these are for leaders that ask a quorum, and for those that do not ask at all.
var slowLeader = []Plan{
	{Name: "a", Flags: []string{"--cluster-election-timeout", "10s"}},
	{Name: "b", Flags: []string{"--cluster-election-timeout", "3s"}},
	{Name: "c", Flags: []string{"--cluster-election-timeout", "3s"}},
}

// Clients beside a leader that is cut off go on reading over the connections that they have, while
// others write at the next leader. All of them together see one history of the key. The control is a
// program whose leader does not look at its lease.
func TestReadersBesideALeaderThatIsCutOff(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	alone := cut{"alone", func(w *world, n *nodes.Node) error { return w.Isolate(n) }}
	unplugged := cut{"without a carrier", func(w *world, n *nodes.Node) error { return w.Unplug(n) }}
	deaf := cut{"deaf", func(w *world, n *nodes.Node) error { return w.Deafen(n) }}
	mute := cut{"mute", func(w *world, n *nodes.Node) error { return w.Mute(n) }}
	for _, test := range []struct {
		name    string
		control func() (string, error)
		plans   []Plan
		flags   []string
		cuts    []cut
	}{
		{"lease", nil, Names("a", "b", "c"), []string{"--cluster-election-timeout", "2s"}, []cut{alone, unplugged, deaf, mute}},
		{"quorum", nil, slowLeader, []string{"--cluster-reads", "quorum"}, []cut{alone}},
		{"control", unchecked, slowLeader, nil, []cut{alone, deaf}}, // a mute one hears of the next leader at once
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := run(t, program(t, test.control), test.plans, test.flags...)
			for _, c := range test.cuts {
				var v history.Verdict
				for i := range attempts {
					if len(test.flags) == 0 || test.flags[0] == "--cluster-reads" {
						w.lead(w.Nodes()[0])
					}
					v = w.readBeside(c, fmt.Sprintf("%s %d", c.name, i))
					if len(v.Violations) > 0 || test.control == nil {
						break
					}
				}
				switch {
				case v.Unchecked > 0 || v.Keys == 0:
					t.Errorf("%s: the history was not checked: %+v", c.name, v)
				case test.control == nil && len(v.Violations) > 0:
					t.Errorf("%s: %v", c.name, v.Violations)
				case test.control != nil && len(v.Violations) == 0:
					t.Errorf("%s: the history has nothing stale", c.name)
				}
			}
		})
	}
}

// cut is a way to cut a node off.
type cut struct {
	name string
	do   func(w *world, n *nodes.Node) error
}

const (
	readersBeside = 3
	readPause     = 5 * time.Millisecond
	newValues     = 20
)

// readBeside cuts the leader off while clients beside it read, and one writes, and judges what all clients saw.
func (w *world) readBeside(c cut, key string) history.Verdict {
	w.t.Helper()
	old := w.leader(0)
	h := &historian{key: key, ctx: w.ctx, stopped: make(chan struct{}), newest: make(chan struct{})}
	first, _ := w.dial(old.Leader)
	h.set("first", first, key, "old")
	var all sync.WaitGroup
	defer all.Wait()
	stop := sync.OnceFunc(func() { close(h.stopped) })
	defer stop()
	var read []chan struct{}
	var conns []*dialer
	for i := range readersBeside {
		reader, conn := w.dial(old.Leader)
		done := make(chan struct{})
		read, conns = append(read, done), append(conns, conn)
		all.Go(func() { h.read(fmt.Sprint("reader", i), reader, done) })
	}

	w.must(c.do(w, old.Leader))
	all.Go(func() { h.set("first", first, key+" beside", "lost") }) // a read of the same key would wait for it
	next := w.leader(old.Term, w.Others(old.Leader)...)
	writer, _ := w.dial(next.Leader)
	for i := range newValues {
		h.set("writer", writer, key, fmt.Sprint("new", i))
	}
	close(h.newest)
	for i := range read { // a request of each reader that began after that is answered, or ends with its connection
		select {
		case <-read[i]:
		case <-conns[i].ended:
		case <-w.ctx.Done():
			w.t.Fatalf("%s: a client beside the former leader is neither answered nor disconnected", c.name)
		}
	}
	w.must(w.Heal())
	w.serving(w.Nodes()...)
	stop()
	all.Wait()
	return history.Judge(h.finish(), nil, w.t.TempDir())
}

// historian notes what clients saw of a key.
type historian struct {
	key     string
	ctx     context.Context
	stopped chan struct{}
	newest  chan struct{} // closed when the last value was written

	mu    sync.Mutex
	order uint64
	ops   []history.Operation
}

func (h *historian) begin(client string, verb statestore.Verb, key, value string) history.Operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.order++
	return history.Operation{Request: history.Request{Verb: verb, Key: key, Value: value, Client: client, Order: h.order, Call: lives.Now()}}
}

func (h *historian) note(op history.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
}

// set writes a value, which may come to nothing.
func (h *historian) set(name string, c *client.Client, key, value string) {
	op := h.begin(name, statestore.Set, key, value)
	if r, err := c.Set(h.ctx, key, []byte(value)); err == nil {
		op.Answer = history.Answer{Fate: history.Answered, Kind: statestore.OK, Version: r.Version, Ret: lives.Now()}
	}
	h.note(op)
}

// read reads until the historian is stopped. It closes done when a read that began after the newest value
// was written is answered.
func (h *historian) read(name string, c *client.Client, done chan struct{}) {
	for finished := false; ; {
		late := isClosed(h.newest)
		op := h.begin(name, statestore.Get, h.key, "")
		v, found, err := c.Get(h.ctx, h.key)
		if err == nil {
			op.Answer = history.Answer{Fate: history.Answered, Kind: statestore.Nil, Ret: lives.Now()}
			if found {
				op.Answer.Kind, op.Answer.Value, op.Answer.Version = statestore.Value, string(v.Bytes), v.Version
			}
			h.note(op)
			if late && !finished {
				finished = true
				close(done)
			}
		}
		select {
		case <-h.stopped:
			return
		case <-time.After(readPause):
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// finish gives the history. What was not answered may have been done at any time.
func (h *historian) finish() []history.Operation {
	now := lives.Now()
	for i := range h.ops {
		if h.ops[i].Fate == history.Lost {
			h.ops[i].Ret = now
		}
	}
	return h.ops
}
