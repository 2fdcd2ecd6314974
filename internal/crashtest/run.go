package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

// Options of a run.
type Options struct {
	Program Program
	Dir     string // for data and drawings; it must exist
	Seed    uint64
	Rounds  int           // kills; 0: as many as fit into For
	For     time.Duration // 0: until Rounds are done

	Store    bool // store clients, watchers, locks, an archive
	Sessions bool // roamers
	Messages bool // publishers, subscribers, shared subscriptions, retained messages, wills

	// Patience is how long a life may be without an end, and anything in it may
	// take; 0: 30 s.
	Patience time.Duration

	// Between is called while the broker is down, with its directory: for tests of
	// this harness, which must notice what a lying disk would do.
	Between func(dir string)
	// Log gets a line now and then; nil: nobody does.
	Log func(format string, args ...any)
}

// How many of each actor there are.
const (
	storeClients   = 5
	storeWindow    = 3
	watchers       = 2
	lockHolders    = 3
	roamers        = 3
	publishersEach = 2 // at each QoS
	retainers      = 2
	testators      = 3
	chapterKeys    = 5
	chapterLocks   = 2
	maxWindow      = 20

	// enough broken promises to know, and to stop.
	enough = 25
)

// run is one run of the harness.
type run struct {
	Options
	rng   *rand.Rand
	addr  string
	began time.Time
	sum   Summary

	mu  sync.Mutex // guards sum.Violations during a life
	num int        // lives so far

	startup time.Duration // of the last start

	chapter    *chapter
	store      []*storeClient
	watchers   []*watcher
	holders    []*lockHolder
	archivist  *archivist
	processors []*processor
	roamers    []*roamer
	publishers []*publisher
	subs       []*subscriber
	retainers  []*publisher
	testators  []*testator
}

// Run lets actors live on the program and kills it, again and again. The error is
// for what keeps it from running; what it found is in the summary.
func Run(ctx context.Context, o Options) (*Summary, error) {
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	if o.Patience == 0 {
		o.Patience = patience
	}
	r := &run{Options: o, rng: rand.New(rand.NewPCG(o.Seed, 0))}
	r.sum = Summary{Broker: o.Program.Name, Seed: o.Seed}
	addr, err := FreeAddress(r.rng.IntN)
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

// actorRand is a source of chance for one more actor.
func (r *run) actorRand() *rand.Rand { return rand.New(rand.NewPCG(r.rng.Uint64(), r.rng.Uint64())) }

// cast makes the actors.
func (r *run) cast() {
	r.chapter = newChapter(0, chapterKeys, chapterLocks)
	if r.Store {
		tokens := randomTokens(time.Now().UnixMilli())
		for i := range storeClients {
			r.store = append(r.store, &storeClient{
				historian: newHistorian(fmt.Sprintf("client%d", i), r.actorRand()), chapter: r.chapter,
				tokens: tokens, window: storeWindow, known: versions{},
			})
		}
		for i := range watchers {
			r.watchers = append(r.watchers, &watcher{historian: newHistorian(fmt.Sprintf("watcher%d", i), r.actorRand()), chapter: r.chapter})
		}
		for i := range lockHolders {
			r.holders = append(r.holders, &lockHolder{historian: newHistorian(fmt.Sprintf("holder%d", i), r.actorRand()), chapter: r.chapter})
		}
		r.archivist = &archivist{historian: newHistorian("archivist", r.actorRand())}
		books := newLedger()
		for i := range processors {
			r.processors = append(r.processors, newProcessor(i, r.actorRand(), books))
		}
	}
	if r.Sessions {
		for i := range roamers {
			r.roamers = append(r.roamers, newRoamer(fmt.Sprintf("roamer%d", i), r.actorRand()))
		}
	}
	if r.Messages {
		r.castMessages()
	}
}

func (r *run) castMessages() {
	for i := range 2 * publishersEach {
		r.publishers = append(r.publishers, &publisher{
			name: fmt.Sprintf("publisher%d", i), number: i, topic: messageTopic(i), qos: byte(1 + i%2),
			rng: r.actorRand(), window: 1 + r.rng.IntN(maxWindow),
		})
	}
	for i := range retainers {
		r.retainers = append(r.retainers, &publisher{
			name: fmt.Sprintf("retainer%d", i), number: i, topic: retainedTopic(i), qos: byte(1 + i%2),
			rng: r.actorRand(), window: 1, retain: true,
		})
	}
	for _, offline := range []bool{false, true} {
		for qos := range byte(2) {
			name := fmt.Sprintf("online%d", 1+qos)
			if offline {
				name = fmt.Sprintf("offline%d", 1+qos)
			}
			r.subs = append(r.subs, newSubscriber(name, 1+qos, offline, r.actorRand(), r.publishers))
		}
	}
	for qos := range byte(2) {
		r.subs = append(r.subs, newGroup(1+qos, r.publishers, r.actorRand)...)
	}
	var heir *subscriber
	r.testators, heir = newTestators(testators, r.actorRand)
	r.subs = append(r.subs, heir)
}

func (r *run) actors() (all []actor) {
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
	// maxWorkBits says how many acknowledgements a life has at most; most have
	// far fewer, since so much depends on what happens soon after a start.
	maxWorkBits = 12
	// maxNews is the same for a life that is killed while its clients resume.
	maxNews = 60
	never   = 1 << 60
)

// round is one kill: eight of ten while clients work, one while the broker
// starts, one while clients resume.
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

// killStarting kills the broker somewhere on its way to being ready.
func (r *run) killStarting() error {
	p, err := r.Program.Start(r.Dir, r.addr)
	if err != nil {
		return err
	}
	moment := time.NewTimer(time.Duration(r.rng.Int64N(int64(r.startup)*5/4 + 1)))
	defer moment.Stop()
	select {
	case <-moment.C:
	case <-p.done:
	}
	if !p.Kill() {
		r.violate("the broker ended by itself while it started; it said:\n%s", p.said.text())
	}
	r.between()
	return nil
}

func (r *run) between() {
	if r.Between != nil {
		r.Between(r.Dir)
	}
}

// settle is a life in which everybody finishes; then the books are balanced and
// a new chapter begins.
func (r *run) settle() error {
	for _, p := range r.publishers {
		p.settle()
	}
	for _, p := range r.retainers {
		p.settle()
	}
	r.sum.Kills.Idle++
	if err := r.live(true, never, never); err != nil {
		return err
	}
	for _, s := range r.subs {
		s.balance()
	}
	r.closeChapter()
	return nil
}

// live is one life of the broker, killed after so much work or news.
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
	l := &life{addr: r.addr, number: r.num, settle: settle, patience: r.Patience, dead: make(chan struct{})}
	l.work.arm(work)
	l.news.arm(news)
	l.attended.arm(int64(len(r.subs)))
	if err := r.checkRetained(l); err != nil {
		return err
	}
	var living sync.WaitGroup
	for _, a := range r.actors() {
		living.Go(func() {
			if err := a.live(l); err != nil {
				r.violate("%v", err)
			}
		})
	}
	r.awaitKill(l, p, &living)
	l.killedAt.Store(now())
	if !p.Kill() {
		r.violate("life %d: the broker ended by itself; it said:\n%s", l.number, p.said.text())
	}
	l.diedAt.Store(now())
	close(l.dead)
	living.Wait()
	r.between()
	return nil
}

func (r *run) checkRetained(l *life) error {
	for _, p := range append(r.publishers[:len(r.publishers):len(r.publishers)], r.retainers...) {
		p.prepare()
	}
	for _, s := range r.subs {
		s.forgetUnsafe()
	}
	if len(r.retainers) == 0 || !l.settle && r.rng.IntN(4) > 0 {
		return nil
	}
	lost, err := checkRetained(l, r.retainers)
	if lost > 0 {
		r.sum.Messages.RetainedLost += lost
		for _, p := range r.retainers {
			p.highest = 0 // counted once
		}
	}
	if errors.Is(err, errBroken) {
		r.violate("life %d: %v", l.number, err)
		return nil
	}
	return err
}

// awaitKill returns when it is time to kill.
func (r *run) awaitKill(l *life, p *Process, living *sync.WaitGroup) {
	all := make(chan struct{})
	go func() {
		living.Wait()
		close(all)
	}()
	late := time.NewTimer(r.Patience)
	defer late.Stop()
	select {
	case <-p.done:
		return
	case <-all:
		return
	case <-l.work.fired:
	case <-l.news.fired:
	case <-late.C:
		r.violate("life %d: no end of it after %v (settling: %v); the broker said:\n%s", l.number, r.Patience, l.settle, p.said.text())
		return
	}
	// Somewhere between the stages of what is on its way.
	moment := time.NewTimer(time.Duration(r.rng.Int64N(int64(3 * time.Millisecond))))
	defer moment.Stop()
	select {
	case <-moment.C:
	case <-p.done:
	}
}

// closeChapter judges the history since the last one.
func (r *run) closeChapter() {
	var ops []operation
	var seen []sighting
	var held []tenure
	for _, c := range r.store {
		ops = append(ops, c.take()...)
	}
	for _, w := range r.watchers {
		seen = append(seen, w.takeSeen()...)
	}
	for _, h := range r.holders {
		ops = append(ops, h.take()...)
		held = append(held, h.takeHeld()...)
	}
	v := judge(ops, seen, r.Dir)
	v.violations = append(v.violations, checkTenures(held)...)
	for _, text := range v.violations {
		r.violate("chapter %d: %s", r.chapter.number, text)
	}
	r.sum.Store.add(ops, v, len(seen), len(held))
	r.chapter = newChapter(r.chapter.number+1, chapterKeys, chapterLocks)
	for _, c := range r.store {
		c.chapter = r.chapter
	}
	for _, w := range r.watchers {
		w.chapter = r.chapter
	}
	for _, h := range r.holders {
		h.chapter = r.chapter
	}
}

// violate notes a broken promise.
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

// count fills in what the actors have counted.
func (r *run) count() {
	r.sum.Seconds = time.Since(r.began).Seconds()
	m := &r.sum.Messages
	for _, p := range r.publishers {
		m.Acknowledged += p.acknowledged
		m.SessionsLost += p.sessionsLost
	}
	for _, p := range r.retainers {
		m.Retained += p.acknowledged
		m.SessionsLost += p.sessionsLost
	}
	for _, s := range r.subs {
		m.add(&s.faults)
		r.sum.Examples = append(r.sum.Examples, s.examples...)
	}
	for _, t := range r.testators {
		m.Wills += t.sessions
	}
	for _, a := range r.roamers {
		r.sum.Sessions.Resumed += a.resumed
		r.sum.Sessions.Checks += a.checks * topics
	}
	if r.archivist != nil {
		r.sum.Store.Archived = r.archivist.count
		r.sum.Processors = r.processors[0].ledger.counts
	}
}

// TempDir makes a directory for a run, and gives what removes it.
func TempDir() (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp("", "holdfast-crash-")
	return dir, func() { os.RemoveAll(dir) }, err
}
