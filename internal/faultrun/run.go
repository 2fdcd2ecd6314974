package faultrun

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/consistent/publisher"
	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// patience is the time limit of each wait once the faults have stopped.
const patience = time.Minute

// Options of a run. A field that is zero has its default.
type Options struct {
	Dir      string   // for the broker's data; it must exist and be empty
	Broker   string   // path of the built holdfast
	Cluster  bool     // the broker is a cluster of three nodes
	Flags    []string // more flags of the broker
	Seed     uint64
	Path     Path          // of the handlers; default Both
	Messages int           // different messages; default 5,000
	Keys     int           // different keys; default one for every 50 messages, and at least 10
	Window   int           // at most this many messages are sent and not settled; default 500
	Pause    time.Duration // mean time between two signals to processes; default 400 ms
	Log      func(format string, args ...any)
}

// Path is how handlers' results are committed.
type Path string

// The paths.
const (
	Transactions Path = "transactions" // the default of package consistent
	State        Path = "state"        // LOAD, STORE and DONE
	Both         Path = "both"         // one or the other, at random, each time an instance starts
)

// Summary is what a run has done and found.
type Summary struct {
	harness.Summary
	Path           Path           `json:"path"`
	Messages       int            `json:"messages"`     // different messages sent
	Sent           int            `json:"sent"`         // messages sent, duplicates included
	Publications   int            `json:"publications"` // outputs received, duplicates included
	Outputs        int            `json:"outputs"`      // different outputs received
	Timers         int            `json:"timers"`       // of them, those that were timers
	TimersLeft     int            `json:"timers_left"`  // timers that wait at the end, each for a reason
	DeadLetters    map[string]int `json:"dead_letters"` // by their reason
	InstanceKills  int            `json:"instance_kills"`
	InstancePauses int            `json:"instance_pauses"`
	BrokerKills    int            `json:"broker_kills"` // of a server by itself
	Cluster        *clusterCounts `json:"cluster,omitempty"`
	VersionChanges int            `json:"version_changes"` // instances that were started with another version of the program
	QueueFull      int            `json:"queue_full"`      // publishes that the broker refused because a processor's queue was full
	StoreFull      int            `json:"store_full"`      // times that the store was filled
	StoreRefused   int            `json:"store_refused"`   // attempts of processors that failed because it was
	Forgotten      int            `json:"forgotten"`       // messages that came again after they were forgotten
	Shared         shared         `json:"shared"`          // by messages of one key, as far as instances have lived to say it
}

// String is the summary for people.
func (s *Summary) String() string {
	broker := fmt.Sprintf("broker killed %d times", s.BrokerKills)
	if s.Cluster != nil {
		broker = s.Cluster.String()
	}
	return fmt.Sprintf("%s: path %s: %d messages (sent %d times) in %.0f s; %d outputs (published %d times), of which %d were timers, and %d timers wait; instances killed %d times, paused %d times, started with another version %d times; %s; %d publishes refused by a full queue; store filled %d times, which refused %d attempts; %d messages forgotten and sent again; messages of one key shared %d transactions and %d STOREs, of which %d messages were replayed; dead letters %v; %s",
		s.Head(), s.Path, s.Messages, s.Sent, s.Seconds, s.Outputs, s.Publications, s.Timers, s.TimersLeft, s.InstanceKills, s.InstancePauses, s.VersionChanges, broker,
		s.QueueFull, s.StoreFull, s.StoreRefused, s.Forgotten, s.Shared.Transactions, s.Shared.Stores, s.Shared.Replays, s.DeadLetters, s.Broken()) + s.List()
}

// run is the state of one run.
type run struct {
	Options
	rng       *rand.Rand       // used by the goroutine that runs signals
	addresses []string         // of the broker, for clients
	broker    *process.Process // nil: not started, or the broker is a cluster
	nodes     *nodes.Cluster   // nil: the broker is no cluster
	instances [3]*instance
	workers   [3]*process.Process
	sender    *client.Session
	publisher *publisher.Publisher // on sender
	filler    *client.Client
	watcher   *client.Session
	summary   Summary
	evidence  evidence

	mu      sync.Mutex
	changed sync.Cond           // on mu: one of the fields below has changed
	outputs map[string]progress // guarded by mu: what has come of each message, by its ID
	open    int                 // guarded by mu: messages that were sent and are not settled
	brief   map[string]int      // guarded by mu: how often a message of forget is a dead letter
	ready   map[string]bool     // guarded by mu: instances that get messages, by their topic
	ended   bool                // guarded by mu: the context has ended
}

// progress says which outputs of a message have come. The message is settled when all
// have come, or a dead letter.
type progress struct {
	out  [outputs]bool
	dead bool
}

func (p progress) settled() bool { return p.dead || !slices.Contains(p.out[:], false) }

// Run sends messages through the instances while it kills and pauses processes, and checks
// that each message was processed once. What it finds is in the summary; an error means
// that the run itself failed.
func Run(ctx context.Context, o Options) (*Summary, error) {
	if o.Messages == 0 {
		o.Messages = 5000
	}
	if o.Keys == 0 {
		o.Keys = max(o.Messages/50, 10)
	}
	if o.Window == 0 {
		o.Window = 500
	}
	if o.Pause == 0 {
		o.Pause = 400 * time.Millisecond
	}
	if o.Path == "" {
		o.Path = Both
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	r := &run{Options: o, rng: rand.New(rand.NewPCG(o.Seed, 2)), outputs: make(map[string]progress), brief: make(map[string]int), ready: make(map[string]bool)}
	r.changed.L = &r.mu
	r.summary = Summary{Summary: harness.Summary{Broker: harness.Holdfast(o.Broker).Name, Seed: o.Seed}, Path: o.Path, Messages: o.Messages, DeadLetters: make(map[string]int)}
	start := time.Now()
	defer r.end()
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	if err := r.overflow(ctx); err != nil {
		return nil, err
	}
	if err := r.sendWithFaults(ctx); err != nil {
		return nil, err
	}
	if err := r.finish(ctx); err != nil {
		return nil, err
	}
	if err := r.forget(ctx); err != nil {
		return nil, err
	}
	r.summary.Seconds = time.Since(start).Seconds()
	r.summary.Violations = r.evidence.check()
	r.summary.Publications, r.summary.Outputs, r.summary.Timers = len(r.evidence.published), r.evidence.different, r.evidence.rung
	return &r.summary, nil
}

// begin starts the broker and the instances.
func (r *run) begin(ctx context.Context) (err error) {
	if err = r.planBroker(); err != nil {
		return err
	}
	if err = r.startBroker(); err != nil {
		return err
	}
	backoff := client.WithBackoff(5*time.Millisecond, 100*time.Millisecond)
	quiet := client.WithLogger(slog.New(slog.DiscardHandler))
	if r.sender, err = client.DialSession(ctx, r.addresses[0], through(r.addresses), client.WithClientID("sender"), backoff, quiet); err != nil {
		return err
	}
	if r.watcher, err = client.DialSession(ctx, r.addresses[0], through(r.addresses), client.WithClientID("watcher"), backoff, quiet, client.WithQueueFull(client.QueueFullReject)); err != nil {
		return err
	}
	if r.publisher, err = publisher.New(&counting{r}, publisher.WithBackoff(time.Millisecond, 50*time.Millisecond), publisher.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
		return err
	}
	if r.filler, err = client.Dial(ctx, r.addresses[0], through(r.addresses), client.WithClientID("filler"), backoff, quiet); err != nil {
		return err
	}
	if err = r.watcher.Subscribe(ctx, "results/#", copies+"#", "booked/#", tallied+"#", sharedTopic, reminders+"#", overdue+"#", idle+"#", deadLetters, refusedTopic, readyTopic+"#", "end"); err != nil {
		return err
	}
	go func() {
		for d, err := range r.watcher.Messages(context.WithoutCancel(ctx)) {
			if err != nil {
				return // the run has closed the session
			}
			r.watch(d)
		}
	}()
	faults := consistenttest.Everything()
	for i := range r.instances {
		r.instances[i] = &instance{Name: fmt.Sprintf("instance-%d", i), Addresses: r.addresses, Share: "crew", Panics: 0.0005, Faults: faults}
		if i == 2 {
			r.instances[i].Share = "" // a subscription of its own, which gets every message
		}
		if err = r.startInstance(i); err != nil {
			return err
		}
	}
	return r.await(ctx, func() bool { return len(r.ready) == len(r.instances) }, "all instances get messages")
}

// queueBound is how many messages may wait for a session: fewer than are sent and not settled,
// so that the queue of an instance that is paused becomes full.
func (r *run) queueBound() int { return max(r.Window/2, 20) }

// storeBytes is a bound of the store that all states need, and a little more: each message is in
// the log of three states. On the state-based path two of its timers have marks besides, and there is
// so much room that instances are seldom refused anything; see overflow.
func (r *run) storeBytes() int {
	bound := 3*9*r.Messages + 120*(2*r.Keys+r.tallies()) + 200<<10
	if r.Path != Transactions {
		bound += 240 * r.Messages
	}
	return bound
}

// tallies is how many keys the tally has.
func (r *run) tallies() int { return r.Messages/perTally + 1 }

func (r *run) startInstance(i int) (err error) {
	in := *r.instances[i]
	in.Seed, in.ClockOffset = r.rng.Uint64(), time.Duration(r.rng.IntN(121)-60)*time.Second
	in.Replay = r.Path == State || r.Path == Both && r.rng.IntN(2) == 0
	if v := r.rng.Uint32N(3); v != in.Version {
		r.summary.VersionChanges++
		in.Version = v
	}
	r.instances[i].Version = in.Version
	in.StampOffset = time.Duration(r.rng.IntN(241)-120) * time.Second // up to 2 minutes, of which the server accepts 1
	r.workers[i], err = in.start()
	return err
}

// end closes the clients' sessions and kills the processes that still run.
func (r *run) end() {
	for _, w := range r.workers {
		if w != nil {
			w.Kill()
		}
	}
	for _, s := range []*client.Session{r.sender, r.watcher} {
		if s != nil {
			_ = s.Close()
		}
	}
	if r.filler != nil {
		_ = r.filler.Close()
	}
	r.killBroker()
}

// sendWithFaults sends all messages while it kills and pauses processes, and waits until
// all messages are settled.
func (r *run) sendWithFaults(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sent := make(chan error, 1)
	go func() { sent <- r.send(ctx) }()
	stop := make(chan struct{})
	var signals sync.WaitGroup
	signals.Go(func() {
		if err := r.signals(ctx, stop); err != nil {
			cancel(err)
		}
	})
	err := <-sent
	close(stop)
	signals.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// signals kills and pauses processes until stop is closed.
func (r *run) signals(ctx context.Context, stop <-chan struct{}) error {
	wait := func(mean time.Duration) bool {
		t := time.NewTimer(mean/2 + time.Duration(r.rng.Int64N(int64(mean))))
		defer t.Stop()
		select {
		case <-t.C:
			return true
		case <-stop:
			return false
		}
	}
	for wait(r.Pause) {
		i := r.rng.IntN(len(r.workers))
		var err error
		choice := r.rng.IntN(11)
		if r.nodes != nil && r.summary.Cluster.Leaders == 0 {
			choice = 10 // however short the run is, a leader is killed
		}
		switch choice {
		case 0, 1, 2, 3:
			r.summary.InstanceKills++
			r.workers[i].Kill()
			err = r.startInstance(i)
		case 4, 5, 6, 7:
			r.summary.InstancePauses++
			r.workers[i].Signal(pauseSignal)
			wait(300 * time.Millisecond)
			r.workers[i].Signal(resumeSignal)
		case 8:
			r.fill(func() { wait(300 * time.Millisecond) })
		default:
			err = r.failBroker(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// send sends all messages and returns when all are settled. It sends some of them twice in
// a row, and some again later. At most Window messages are sent and not settled.
func (r *run) send(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ended = true
		r.changed.Broadcast()
	})
	defer stop()
	rng := rand.New(rand.NewPCG(r.Seed, 3))
	var all []order
	for n := range r.Messages {
		o := order{ID: fmt.Sprintf("%x", n), Key: fmt.Sprint(rng.IntN(r.Keys)), Fickle: rng.IntN(500) == 0,
			Sent: time.Now().Add(time.Duration(rng.IntN(241)-120) * time.Second).Round(0)}
		switch rng.IntN(500) {
		case 0:
			o.Sent, o.Wrong = o.Sent.Add(-8*24*time.Hour), tooOld
		case 1:
			o.Sent, o.Wrong = o.Sent.Add(24*time.Hour), ahead // it may be repeated at the end of a long run
		}
		all = append(all, o)
		batch := []consistent.Message{o.message()}
		if rng.IntN(20) == 0 {
			batch = append(batch, o.message())
		}
		if rng.IntN(20) == 0 {
			batch = append(batch, all[rng.IntN(len(all))].message())
		}
		r.mu.Lock()
		for r.open >= r.Window && !r.ended {
			r.changed.Wait()
		}
		r.open++
		r.mu.Unlock()
		if err := r.publisher.Publish(ctx, batch...); err != nil {
			return err
		}
		if n%10_000 == 9_999 {
			r.Log("%d messages sent", n+1)
		}
	}
	r.evidence.sent = all
	if err := r.await(ctx, func() bool { return r.open == 0 }, "every message is processed"); err != nil {
		r.evidence.late = err.Error() // the evidence says which messages, and how far they were processed
	}
	return ctx.Err()
}

// await waits until holds returns true, and for patience at most. holds reads fields that
// mu guards. what describes the condition for the error.
func (r *run) await(ctx context.Context, holds func() bool, what string) error {
	late := false
	deadline := time.AfterFunc(patience, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		late = true
		r.changed.Broadcast()
	})
	defer deadline.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !holds() && !r.ended && !late {
		r.changed.Wait()
	}
	if !holds() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("after %v it is still not true that %s; %d messages are open", patience, what, r.open)
	}
	return nil
}

// finish ends the instances, waits until the watcher has received all that they published,
// and reads the states.
func (r *run) finish(ctx context.Context) error {
	for i, w := range r.workers {
		r.workers[i] = nil
		if err := stopInstance(w); err != nil {
			return err
		}
	}
	marker := false
	r.evidence.end = func() { marker = true }
	if err := r.sender.Publish(ctx, consistent.Message{Topic: "end"}); err != nil {
		return err
	}
	if err := r.await(ctx, func() bool { return marker }, "the watcher has received the last message"); err != nil {
		return err
	}
	c, err := client.Dial(ctx, r.addresses[0], through(r.addresses))
	if err != nil {
		return err
	}
	defer c.Close()
	r.evidence.path = r.Path
	if r.evidence.timers, err = waiting(ctx, c); err != nil {
		return err
	}
	r.summary.TimersLeft = len(r.evidence.timers)
	if r.evidence.states, err = states(ctx, c, shiftName, r.Keys); err != nil {
		return err
	}
	if r.evidence.booked, err = states(ctx, c, ledgerName, r.Keys); err != nil {
		return err
	}
	r.evidence.tallied, err = states(ctx, c, tallyName, r.tallies())
	return err
}

// states reads the states of so many keys of a handler.
func states(ctx context.Context, c *client.Client, handler string, keys int) (map[string]shift, error) {
	states := make(map[string]shift)
	for k := range keys {
		var s shift
		found, err := stateOf(ctx, c, fmt.Sprintf("%s/%d", handler, k), &s)
		if err != nil {
			return nil, err
		}
		if found {
			states[fmt.Sprint(k)] = s
		}
	}
	return states, nil
}

// stateOf reads one state into what s points to.
func stateOf(ctx context.Context, c *client.Client, key string, s any) (found bool, err error) {
	v, found, err := c.Get(ctx, key)
	if err != nil || !found {
		return false, err
	}
	return true, json.Unmarshal(v.Bytes, s)
}

// watch records a message that the watcher has received: an output, a dead letter, an
// instance's sign that it is ready, or the marker at the end.
func (r *run) watch(d client.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.changed.Broadcast()
	defer d.Ack()
	switch {
	case d.Topic == "end":
		r.evidence.end()
		return
	case strings.HasPrefix(d.Topic, overdue), strings.HasPrefix(d.Topic, idle):
		r.evidence.unreadable = append(r.evidence.unreadable, fmt.Sprintf("8: the message %s came, which is due in %v", d.Topic, longTimer))
		return
	case d.Topic == briefLetters:
		id, _ := d.UserProperties.Get("id")
		r.brief[id]++
		return
	case d.Topic == sharedTopic:
		r.countShared(d.Payload)
		return
	case d.Topic == refusedTopic:
		r.summary.StoreRefused++
		return
	case strings.HasPrefix(d.Topic, readyTopic):
		r.ready[d.Topic] = true
		return
	}
	d.Expiry = 0
	id, which, err := identify(&d.Message)
	if err != nil {
		r.evidence.unreadable = append(r.evidence.unreadable, err.Error())
		return
	}
	before := r.outputs[id]
	now := before
	if d.Topic == deadLetters {
		reason, _ := d.UserProperties.Get(consistent.DeadLetterReason)
		r.summary.DeadLetters[kindOf(reason)]++
		r.evidence.dead = append(r.evidence.dead, letter{id, reason})
		now.dead = true
	} else {
		r.evidence.published = append(r.evidence.published, publication{id, which, d.Message})
		now.out[which] = true
	}
	r.outputs[id] = now
	if now.settled() && !before.settled() {
		r.open--
	}
}

// identify decodes an output: the ID of the message that was processed, and which of its
// outputs it is.
func identify(m *consistent.Message) (id string, which int, err error) {
	var payload struct {
		ID    string
		Which int
	}
	if err := json.Unmarshal(m.Payload, &payload); err != nil || payload.ID == "" || payload.Which < 0 || payload.Which >= outputs {
		return "", 0, fmt.Errorf("cannot decode the message that was published to %s: %q", m.Topic, m.Payload)
	}
	return payload.ID, payload.Which, nil
}

// notDeterministic is the kind of dead letters of messages on which a handler was caught.
const notDeterministic = "not deterministic"

// kindOf groups the reasons of dead letters: a reason that contains a known text counts as
// that text.
func kindOf(reason string) string {
	kinds := []string{"panicked: injected", notDeterministic, string(tooOld), string(ahead)}
	if i := slices.IndexFunc(kinds, func(k string) bool { return strings.Contains(reason, k) }); i >= 0 {
		return kinds[i]
	}
	return reason
}
