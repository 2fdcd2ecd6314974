package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/history"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/messages"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/sessions"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/store"
	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Options of a run.
type Options struct {
	Program harness.Program
	Dir     string // for the broker's data and drawn histories; it must exist
	Seed    uint64
	Rounds  int           // kills; 0: as many as fit into For
	For     time.Duration // 0: until Rounds are done

	Store    bool // store clients, watchers, locks, an archive
	Sessions bool // roamers
	Messages bool // publishers, subscribers, shared subscriptions, retained messages, wills

	// Patience is how long a life may take, and each thing that an actor waits for;
	// 0: 30 s.
	Patience time.Duration

	// Between is called with the broker's directory while the broker does not run: for
	// tests of this package, which must notice a disk that has lost data.
	Between func(dir string)
	// Log gets lines of progress; nil: they are dropped.
	Log func(format string, args ...any)
}

// How many of each actor there are.
const (
	storeClients   = 5
	watchers       = 2
	lockHolders    = 3
	roamers        = 3
	publishersEach = 2 // at each QoS
	retainers      = 2
	testators      = 3
	chapterKeys    = 5
	chapterLocks   = 2
	maxWindow      = 20

	// enough is after how many broken promises a run stops.
	enough = 25
)

// run is one run.
type run struct {
	Options
	rng   *rand.Rand
	addr  string
	began time.Time
	sum   Summary

	mu  sync.Mutex // guards sum.Violations during a life
	num int        // lives so far

	startup time.Duration // how long the last start took

	chapter    *store.Chapter
	store      []*store.Client
	watchers   []*store.Watcher
	holders    []*store.LockHolder
	archivist  *store.Archivist
	processors []*store.Processor
	roamers    []*sessions.Roamer
	publishers []*messages.Publisher
	subs       []*messages.Subscriber
	retainers  []*messages.Publisher
	testators  []*messages.Testator
}

// Run starts the program, lets the actors use it, and kills it, again and again. The
// error says why it could not go on; what it has found is in the summary.
func Run(ctx context.Context, o Options) (*Summary, error) {
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	if o.Patience == 0 {
		o.Patience = harness.Patience
	}
	r := &run{Options: o, rng: rand.New(rand.NewPCG(o.Seed, 0))}
	r.sum = Summary{Summary: harness.Summary{Broker: o.Program.Name, Seed: o.Seed}}
	addr, err := process.FreeAddress(r.rng.IntN)
	if err != nil {
		return nil, err
	}
	r.addr = addr
	r.cast()
	r.began = time.Now()
	err = r.rounds(ctx)
	r.count()
	return &r.sum, err
}

func (r *run) rounds(ctx context.Context) error {
	var until time.Time
	if r.For > 0 {
		until = time.Now().Add(r.For)
	}
	over := func() bool {
		return ctx.Err() != nil || r.Rounds > 0 && r.sum.Rounds >= r.Rounds ||
			!until.IsZero() && time.Now().After(until) || r.failures() >= enough
	}
	if err := r.settle(); err != nil {
		return err
	}
	for !over() {
		for range 3 + r.rng.IntN(8) {
			if over() {
				break
			}
			if err := r.round(); err != nil {
				return err
			}
		}
		if err := r.settle(); err != nil {
			return err
		}
		r.sum.Seconds = time.Since(r.began).Seconds()
		r.Log("%v", r.sum.progress())
	}
	return nil
}

// actorRand makes the random numbers of one more actor.
func (r *run) actorRand() *rand.Rand { return rand.New(rand.NewPCG(r.rng.Uint64(), r.rng.Uint64())) }

// cast makes the actors.
func (r *run) cast() {
	r.chapter = store.NewChapter(0, chapterKeys, chapterLocks)
	if r.Store {
		tokens := store.RandomTokens(time.Now().UnixMilli())
		for i := range storeClients {
			r.store = append(r.store, store.NewClient(i, r.actorRand(), r.chapter, tokens))
		}
		for i := range watchers {
			r.watchers = append(r.watchers, store.NewWatcher(i, r.actorRand(), r.chapter))
		}
		for i := range lockHolders {
			r.holders = append(r.holders, store.NewLockHolder(i, r.actorRand(), r.chapter))
		}
		r.archivist = store.NewArchivist(r.actorRand())
		books := store.NewLedger()
		for i := range store.Processors {
			r.processors = append(r.processors, store.NewProcessor(i, r.actorRand(), books))
		}
	}
	if r.Sessions {
		for i := range roamers {
			r.roamers = append(r.roamers, sessions.NewRoamer(fmt.Sprintf("roamer%d", i), r.actorRand()))
		}
	}
	if r.Messages {
		r.castMessages()
	}
}

func (r *run) castMessages() {
	for i := range 2 * publishersEach {
		r.publishers = append(r.publishers, messages.NewPublisher(i, r.actorRand(), 1+r.rng.IntN(maxWindow)))
	}
	for i := range retainers {
		r.retainers = append(r.retainers, messages.NewRetainer(i, r.actorRand()))
	}
	for _, offline := range []bool{false, true} {
		for qos := range byte(2) {
			name := fmt.Sprintf("online%d", 1+qos)
			if offline {
				name = fmt.Sprintf("offline%d", 1+qos)
			}
			r.subs = append(r.subs, messages.NewSubscriber(name, 1+qos, offline, r.actorRand(), r.publishers))
		}
	}
	for qos := range byte(2) {
		r.subs = append(r.subs, messages.NewGroup(1+qos, r.publishers, r.actorRand)...)
	}
	var heir *messages.Subscriber
	r.testators, heir = messages.NewTestators(testators, r.actorRand)
	r.subs = append(r.subs, heir)
}

func (r *run) actors() (all []lives.Actor) {
	for _, a := range r.subs {
		all = append(all, a)
	}
	for _, a := range r.publishers {
		all = append(all, a)
	}
	for _, a := range r.retainers {
		all = append(all, a)
	}
	for _, a := range r.testators {
		all = append(all, a)
	}
	for _, a := range r.store {
		all = append(all, a)
	}
	for _, a := range r.watchers {
		all = append(all, a)
	}
	for _, a := range r.holders {
		all = append(all, a)
	}
	for _, a := range r.roamers {
		all = append(all, a)
	}
	for _, a := range r.processors {
		all = append(all, a)
	}
	if r.archivist != nil {
		all = append(all, r.archivist)
	}
	return all
}

const (
	// maxWorkBits bounds the acknowledgements of a life, as a power of two. Most lives
	// have far fewer, because most defects show soon after a start.
	maxWorkBits = 12
	// maxNews bounds the connections and messages of a life that is killed while its
	// clients resume.
	maxNews = 60
	never   = 1 << 60
)

// round is one kill: of ten kills, on average, eight happen while clients work, one while
// the broker starts, and one while clients resume.
func (r *run) round() error {
	r.sum.Rounds++
	switch r.rng.IntN(10) {
	case 0:
		r.sum.Kills.Recovery++
		return r.killStarting()
	case 1:
		r.sum.Kills.Resume++
		return r.live(false, 1+r.rng.Int64N(maxNews), 1+r.rng.Int64N(maxNews))
	default:
		r.sum.Kills.Sending++
		return r.live(false, 1+r.rng.Int64N(1<<(4+r.rng.IntN(maxWorkBits-3))), never)
	}
}

// killStarting kills the broker at a random moment of its start.
func (r *run) killStarting() error {
	p, err := r.Program.Start(r.Dir, r.addr)
	if err != nil {
		return err
	}
	moment := time.NewTimer(time.Duration(r.rng.Int64N(int64(r.startup)*5/4 + 1)))
	defer moment.Stop()
	select {
	case <-moment.C:
	case <-p.Ended():
	}
	if !p.Kill() {
		r.violate("the broker ended by itself while it started; it said:\n%s", p.Output())
	}
	r.between()
	return nil
}

func (r *run) between() {
	if r.Between != nil {
		r.Between(r.Dir)
	}
}

// settle is a life in which every actor finishes its work. Then the run checks all
// results, and a new chapter begins.
func (r *run) settle() error {
	for _, p := range r.publishers {
		p.Settle()
	}
	for _, p := range r.retainers {
		p.Settle()
	}
	r.sum.Kills.Idle++
	if err := r.live(true, never, never); err != nil {
		return err
	}
	for _, s := range r.subs {
		s.Balance()
	}
	r.closeChapter()
	return nil
}

// live is one life of the broker. It ends with a kill after a number of acknowledgements
// (work) or of connections and messages (news), or when all actors are done.
func (r *run) live(settle bool, work, news int64) error {
	began := time.Now()
	p, err := r.Program.Start(r.Dir, r.addr)
	if err != nil {
		return err
	}
	defer p.Kill()
	if err := p.AwaitReady(); err != nil {
		return err
	}
	r.startup = time.Since(began)
	r.num++
	l := &lives.Life{Addr: r.addr, Number: r.num, Settle: settle, Patience: r.Patience, Dead: make(chan struct{})}
	l.Work.Arm(work)
	l.News.Arm(news)
	l.Attended.Arm(int64(len(r.subs)))
	if err := r.checkRetained(l); err != nil {
		return err
	}
	var living sync.WaitGroup
	for _, a := range r.actors() {
		living.Go(func() {
			if err := a.Live(l); err != nil {
				r.violate("%v", err)
			}
		})
	}
	r.awaitKill(l, p, &living)
	l.KilledAt.Store(lives.Now())
	if !p.Kill() {
		r.violate("life %d: the broker ended by itself; it said:\n%s", l.Number, p.Output())
	}
	l.DiedAt.Store(lives.Now())
	close(l.Dead)
	living.Wait()
	r.between()
	return nil
}

func (r *run) checkRetained(l *lives.Life) error {
	for _, p := range append(r.publishers[:len(r.publishers):len(r.publishers)], r.retainers...) {
		p.Prepare()
	}
	for _, s := range r.subs {
		s.ForgetUnsafe()
	}
	if len(r.retainers) == 0 || !l.Settle && r.rng.IntN(4) > 0 {
		return nil
	}
	lost, err := messages.CheckRetained(l, r.retainers)
	if lost > 0 {
		r.sum.Messages.RetainedLost += lost
		for _, p := range r.retainers {
			p.Highest = 0 // so that it is counted only once
		}
	}
	if errors.Is(err, lives.ErrBroken) {
		r.violate("life %d: %v", l.Number, err)
		return nil
	}
	return err
}

// awaitKill returns when it is time to kill.
func (r *run) awaitKill(l *lives.Life, p *process.Process, living *sync.WaitGroup) {
	all := make(chan struct{})
	go func() {
		living.Wait()
		close(all)
	}()
	late := time.NewTimer(r.Patience)
	defer late.Stop()
	select {
	case <-p.Ended():
		return
	case <-all:
		return
	case <-l.Work.Fired:
	case <-l.News.Fired:
	case <-late.C:
		r.violate("life %d: it has not ended after %v (settling: %v); the broker said:\n%s", l.Number, r.Patience, l.Settle, p.Output())
		return
	}
	// A random pause, so that the kill meets requests in all of their stages.
	moment := time.NewTimer(time.Duration(r.rng.Int64N(int64(3 * time.Millisecond))))
	defer moment.Stop()
	select {
	case <-moment.C:
	case <-p.Ended():
	}
}

// closeChapter judges the history since the last chapter.
func (r *run) closeChapter() {
	var ops []history.Operation
	var seen []history.Sighting
	var held []store.Tenure
	for _, c := range r.store {
		ops = append(ops, c.Take()...)
	}
	for _, w := range r.watchers {
		seen = append(seen, w.TakeSeen()...)
	}
	for _, h := range r.holders {
		ops = append(ops, h.Take()...)
		held = append(held, h.TakeHeld()...)
	}
	v := history.Judge(ops, seen, r.Dir)
	v.Violations = append(v.Violations, store.CheckTenures(held)...)
	for _, text := range v.Violations {
		r.violate("chapter %d: %s", r.chapter.Number, text)
	}
	r.sum.Store.add(ops, v, len(seen), len(held))
	r.chapter = store.NewChapter(r.chapter.Number+1, chapterKeys, chapterLocks)
	for _, c := range r.store {
		c.Chapter = r.chapter
	}
	for _, w := range r.watchers {
		w.Chapter = r.chapter
	}
	for _, h := range r.holders {
		h.Chapter = r.chapter
	}
}

// violate adds a broken promise to the summary.
func (r *run) violate(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Violations = append(r.sum.Violations, fmt.Sprintf(format, args...))
}

func (r *run) failures() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sum.Violations)
}

// count adds up what the actors have counted.
func (r *run) count() {
	r.sum.Seconds = time.Since(r.began).Seconds()
	m := &r.sum.Messages
	for _, p := range r.publishers {
		m.Acknowledged += p.Acknowledged
		m.SessionsLost += p.SessionsLost
	}
	for _, p := range r.retainers {
		m.Retained += p.Acknowledged
		m.SessionsLost += p.SessionsLost
	}
	for _, s := range r.subs {
		m.add(&s.Faults)
		r.sum.Examples = append(r.sum.Examples, s.Examples...)
	}
	for _, t := range r.testators {
		m.Wills += t.Sessions
	}
	for _, a := range r.roamers {
		r.sum.Sessions.Resumed += a.Resumed
		r.sum.Sessions.Checks += a.Checks * sessions.Topics
	}
	if r.archivist != nil {
		r.sum.Store.Archived = r.archivist.Count
		r.sum.Processors = r.processors[0].Counts()
	}
}
