package engine

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// watcherUnderTest checks, event by event, what a watching session may rely on.
type watcherUnderTest struct {
	t       *testing.T
	name    string
	allowed [4]atomic.Bool // by key: registered, or about to be, or STOP is not answered
	events  atomic.Int64

	mu   sync.Mutex
	last [4]hlc.Timestamp // guarded by mu: by key, the version told last
}

func (w *watcherUnderTest) Event(e *statestore.Event) {
	i := e.Key[0] - 'a'
	if !w.allowed[i].Load() {
		w.t.Errorf("%s: event of %s after STOP was answered", w.name, e.Key)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Version.Compare(w.last[i]) <= 0 {
		w.t.Errorf("%s: version %v of %s after %v", w.name, e.Version, e.Key, w.last[i])
	}
	w.last[i] = e.Version
	w.events.Add(1)
}

func (w *watcherUnderTest) Lost() { w.t.Errorf("%s: lost", w.name) }

// run gives a command; f, if not nil, sees the reply before done is closed.
func (w *world) run(c *client, text string, f func(*statestore.Reply)) (done chan struct{}) {
	done = make(chan struct{})
	c.replies.do(c.Session, parse(w.t, text, startMs), func(r *statestore.Reply) {
		if f != nil {
			f(r)
		}
		close(done)
	})
	return done
}

// Writers, expiry, and watchers that come and go, all on four keys.
func TestWatchersUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	stop := make(chan struct{})
	var writers, watchers sync.WaitGroup
	for id := range 3 {
		writers.Go(func() { w.writeUntil(stop, uint64(id)) })
	}
	var all []*watcherUnderTest
	for id := range 4 {
		sink := &watcherUnderTest{t: t, name: fmt.Sprint("watcher ", id)}
		all = append(all, sink)
		watchers.Go(func() { w.watchAndStop(sink, 150) })
	}
	watchers.Wait()
	close(stop)
	writers.Wait()
	w.settle()
	var events int64
	for _, sink := range all {
		events += sink.events.Load()
	}
	if events == 0 {
		t.Error("no watcher got a notification")
	}
	if n := w.e.Stats().Watches; n != 0 {
		t.Errorf("%d watches are left", n)
	}
	w.checkCounters()
}

func (w *world) writeUntil(stop chan struct{}, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	s := w.open(Origin{})
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		key := string(rune('a' + rng.IntN(4)))
		var done chan struct{}
		switch rng.IntN(4) {
		case 0:
			done = w.run(s, "DEL "+key, nil)
		case 1:
			done = w.run(s, fmt.Sprintf("SET %s v%d PX=%d", key, n, 1+rng.IntN(3)), nil)
		default:
			done = w.run(s, fmt.Sprintf("SET %s v%d", key, n), nil)
		}
		if rng.IntN(4) == 0 {
			w.clock.advance(1)
			w.e.ExpireDue()
		}
		if n%8 == 0 {
			<-done
		}
	}
}

// watchAndStop also checks that the own event of a SET precedes its reply.
func (w *world) watchAndStop(sink *watcherUnderTest, rounds int) {
	for n := range rounds {
		s := w.open(Origin{Sink: sink})
		i := n % 4
		key := string(rune('a' + i))
		sink.allowed[i].Store(true)
		<-w.run(s, "WATCH "+key, nil)
		<-w.run(s, fmt.Sprintf("SET %s own%d", key, n), func(r *statestore.Reply) {
			sink.mu.Lock()
			defer sink.mu.Unlock()
			if r.Version.Compare(sink.last[i]) > 0 {
				w.t.Errorf("%s: the reply to the SET of version %v came before its event, after that of %v", sink.name, r.Version, sink.last[i])
			}
		})
		<-w.run(s, "STOP "+key, func(r *statestore.Reply) {
			if r.Kind != statestore.OK {
				w.t.Errorf("STOP -> %s", show(r))
			}
			sink.allowed[i].Store(false)
		})
		s.Close()
	}
}

// checkCounters compares the quota's counters with what is there.
func (w *world) checkCounters() {
	w.t.Helper()
	var keys, bytes int64
	for i := range w.e.shards {
		sh := &w.e.shards[i]
		sh.mu.Lock()
		sh.table.Each(func(r table.Record) {
			key, value := sh.table.Key(r), sh.table.Value(r)
			if !r.Live() {
				w.t.Errorf("the tombstone of %s is left", key)
				return
			}
			keys++
			bytes += int64(len(key) + len(value))
		})
		if n := len(sh.watchers); n > 0 {
			w.t.Errorf("the watchers of %d keys are left", n)
		}
		sh.mu.Unlock()
	}
	if s := w.e.Stats(); s.Keys != keys || s.Bytes != bytes {
		w.t.Errorf("%d keys of %d bytes are there, counted %d and %d", keys, bytes, s.Keys, s.Bytes)
	}
}

// Sessions that are closed at any moment, by several goroutines.
func TestCloseAgainstEverything(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	var wg sync.WaitGroup
	for id := range 4 {
		wg.Go(func() {
			for range 200 {
				s := w.open(Origin{Sink: ignoringSink{}})
				var closer sync.WaitGroup
				closer.Go(s.Close)
				for _, text := range []string{"WATCH a", "SET a v", "WATCH b", "DEL a", "STOP b"} {
					w.run(s, text, nil)
				}
				closer.Wait()
				<-w.run(s, fmt.Sprintf("SET x%d v", id), nil)
			}
		})
	}
	wg.Wait()
	w.settle()
	if n := w.e.Stats().Watches; n != 0 {
		t.Errorf("%d watches are left", n)
	}
	w.checkCounters()
}

type ignoringSink struct{}

func (ignoringSink) Event(*statestore.Event) {}
func (ignoringSink) Lost()                   {}
