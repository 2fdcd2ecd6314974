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
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/partition"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/sessions"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/store"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/timers"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/transfers"
	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Options of a run.
type Options struct {
	Program harness.Program
	Cluster *nodes.Cluster     // run this instead of Program; nil: one broker
	Network *partition.Cluster // run this instead, and cut its links; nil: Cluster's cannot be cut
	Faults  []Fault            // what happens to Cluster or Network; nil: all
	Next    string             // the program that Upgrade gives the nodes of Cluster
	Sizes   []int              // how many nodes Resize gives Cluster, one size after the other
	Dir     string             // for the broker's data and drawn histories; it must exist
	Seed    uint64
	Rounds  int           // number of kills, in a cluster of leaders, with Network of cuts; 0: as many as fit into For
	For     time.Duration // when to stop, although Rounds are not done; 0: no limit
	// Enough says whether a run that would be over has met all that its test wants to see; until then it
	// goes on. nil: it always has.
	Enough func(*Summary) bool

	Store    bool // run store clients, transactors, watchers, lock holders, processors, an archivist, a clerk, an auditor and a keeper of timers
	Sessions bool // run roamers
	Messages bool // run publishers, subscribers, shared subscriptions, retainers and testators

	// Patience is the time limit of a life, and of each wait of an actor; 0: 30 s.
	Patience time.Duration

	// Between is called with the broker's directory after each kill, before the next start.
	// Tests of this package use it to remove data, which the run must notice; nil: nothing is
	// called.
	Between func(dir string)
	// Log gets lines of progress; nil: they are dropped.
	Log func(format string, args ...any)
}

// How many of each actor a run has, and what they use.
const (
	storeClients   = 5
	transactors    = 3
	watchers       = 2
	lockHolders    = 3
	roamers        = 3  // each makes, resumes and ends a session, and subscriptions in it
	publishersEach = 2  // at each QoS
	retainers      = 2  // each publishes retained messages to one topic
	testators      = 3  // each connects with a will, which the broker publishes after a kill
	maxWindow      = 20 // inflight messages of one publisher

	// A chapter is the part of a run between two settlements; each has keys and locks of
	// its own.
	chapterKeys  = 5                    // keys that the store clients use in one chapter
	chapterJoint = history.MaxTxnWrites // keys that the transactors use in one chapter
	chapterLocks = 2                    // locks that the lock holders use in one chapter

	// maxViolations is the number of violations after which a run stops.
	maxViolations = 25
)

// run is the state of one run.
type run struct {
	Options
	rng   *rand.Rand
	addr  string // of the broker, the same in all lives
	began time.Time
	sum   Summary

	mu    sync.Mutex // guards sum.Violations during a life
	lives int        // number of lives so far

	startup time.Duration // how long the latest start took

	chapter    *store.Chapter
	store      []*store.Client
	watchers   []*store.Watcher
	holders    []*store.LockHolder
	archivist  *store.Archivist // keeps keys for the whole run, over all chapters; nil: Options.Store is false
	processors []*store.Processor
	books      *transfers.Books // nil: Options.Store is false
	bank       []lives.Actor    // the keeper, the clerk and the auditor of books
	keeper     *timers.Keeper   // nil: Options.Store is false
	roamers    []*sessions.Roamer
	publishers []*messages.Publisher
	subs       []*messages.Subscriber
	retainers  []*messages.Publisher
	testators  []*messages.Testator
}

// Run repeatedly starts the program, lets the actors use it, and kills it. What it finds
// is in the summary; the error says why the run could not continue.
func Run(ctx context.Context, o Options) (*Summary, error) {
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	if o.Patience == 0 {
		o.Patience = harness.Patience
	}
	if o.Network != nil {
		o.Cluster = o.Network.Cluster
	}
	r := &run{Options: o, rng: rand.New(rand.NewPCG(o.Seed, 0))}
	r.sum = Summary{Summary: harness.Summary{Broker: o.Program.Name, Seed: o.Seed}}
	if r.Cluster != nil {
		r.sum.Broker, r.sum.Cluster = fmt.Sprintf("holdfast, a cluster of %d", len(r.Cluster.Nodes())), &ClusterCounts{}
	}
	addr, err := process.FreeAddress(r.rng.IntN)
	if err != nil {
		return nil, err
	}
	r.addr = addr
	r.makeActors()
	r.began = time.Now()
	err = r.rounds(ctx)
	if r.Cluster != nil {
		r.Cluster.Kill(r.Cluster.Nodes()...)
	}
	return r.counted(), err
}

// rounds kills the broker until the run is over, and settles after every few kills.
func (r *run) rounds(ctx context.Context) error {
	var until time.Time
	if r.For > 0 {
		until = time.Now().Add(r.For)
	}
	stopped := func() bool { return ctx.Err() != nil || r.violations() >= maxViolations }
	over := func() bool {
		return stopped() || r.Rounds > 0 && r.done() >= r.Rounds || !until.IsZero() && time.Now().After(until)
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	for !over() || !stopped() && r.Enough != nil && !r.Enough(r.counted()) {
		for i := range 3 + r.rng.IntN(8) {
			if i > 0 && over() {
				break
			}
			if err := r.round(ctx); err != nil {
				return err
			}
		}
		if err := r.settle(ctx); err != nil {
			return err
		}
		r.sum.Seconds = time.Since(r.began).Seconds()
		r.Log("%v", r.sum.progress())
	}
	return nil
}

// done is how many of Options.Rounds are done.
func (r *run) done() int {
	switch {
	case r.Network != nil:
		return r.sum.Cluster.Cuts
	case r.Cluster != nil:
		return r.sum.Cluster.Leaders
	}
	return r.sum.Rounds
}

// actorRand makes a source of random numbers for one actor.
func (r *run) actorRand() *rand.Rand { return rand.New(rand.NewPCG(r.rng.Uint64(), r.rng.Uint64())) }

// makeActors makes the actors of the parts that Options names.
func (r *run) makeActors() {
	r.chapter = store.NewChapter(0, chapterKeys, chapterJoint, chapterLocks)
	if r.Store {
		tokens := store.RandomTokens(time.Now().UnixMilli())
		for i := range storeClients {
			r.store = append(r.store, store.NewClient(i, r.actorRand(), r.chapter, tokens))
		}
		for i := range transactors {
			r.store = append(r.store, store.NewTransactor(i, r.actorRand(), r.chapter, tokens))
		}
		for i := range watchers {
			r.watchers = append(r.watchers, store.NewWatcher(i, r.actorRand(), r.chapter))
		}
		for i := range lockHolders {
			r.holders = append(r.holders, store.NewLockHolder(i, r.actorRand(), r.chapter))
		}
		r.archivist = store.NewArchivist(r.actorRand())
		ledger := store.NewLedger()
		for i := range store.Processors {
			r.processors = append(r.processors, store.NewProcessor(i, r.actorRand(), ledger))
		}
		r.books = transfers.NewBooks()
		r.keeper = timers.NewKeeper(r.actorRand())
		r.bank = []lives.Actor{r.keeper, transfers.NewClerk(r.books, r.actorRand()), transfers.NewAuditor(r.books)}
	}
	if r.Sessions {
		for i := range roamers {
			r.roamers = append(r.roamers, sessions.NewRoamer(fmt.Sprintf("roamer%d", i), r.actorRand()))
		}
	}
	if r.Messages {
		r.makeMessageActors()
	}
}

// makeMessageActors makes the actors of Options.Messages.
func (r *run) makeMessageActors() {
	for i := range 2 * publishersEach {
		r.publishers = append(r.publishers, messages.NewPublisher(i, r.actorRand(), 1+r.rng.IntN(maxWindow)))
	}
	for i := range retainers {
		r.retainers = append(r.retainers, messages.NewRetainer(i, r.actorRand()))
	}
	for _, offline := range []bool{false, true} {
		for _, qos := range []byte{1, 2} {
			name := fmt.Sprintf("online%d", qos)
			if offline {
				name = fmt.Sprintf("offline%d", qos)
			}
			r.subs = append(r.subs, messages.NewSubscriber(name, qos, offline, r.actorRand(), r.publishers))
		}
	}
	for _, qos := range []byte{1, 2} {
		r.subs = append(r.subs, messages.NewGroup(qos, r.publishers, r.actorRand)...)
	}
	var heir *messages.Subscriber // subscribes to the wills of the testators
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
	return append(all, r.bank...)
}

const (
	// maxWorkBits bounds the acknowledgements of a life, as a power of two. Most lives
	// have far fewer, because most defects show soon after a start.
	maxWorkBits = 12
	// maxArrivals bounds the connections and messages of a life that is killed while its
	// clients resume.
	maxArrivals = 60
	// never is a count that a life does not reach.
	never = 1 << 60
)

// round kills the broker once. Of ten kills, on average, eight happen while clients work,
// one while the broker starts, and one while clients resume.
func (r *run) round(ctx context.Context) error {
	r.sum.Rounds++
	if r.Cluster != nil {
		return r.clusterRound(ctx)
	}
	switch r.rng.IntN(10) {
	case 0:
		r.sum.Kills.Recovery++
		return r.killStarting()
	case 1:
		r.sum.Kills.Resume++
		return r.live(false, 1+r.rng.Int64N(maxArrivals), 1+r.rng.Int64N(maxArrivals))
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
func (r *run) settle(ctx context.Context) error {
	for _, p := range r.publishers {
		p.Settle()
	}
	for _, p := range r.retainers {
		p.Settle()
	}
	r.sum.Kills.Idle++
	live := func() error { return r.live(true, never, never) }
	if r.Cluster != nil {
		live = func() error { return r.settleCluster(ctx) }
	}
	if err := live(); err != nil {
		return err
	}
	for _, s := range r.subs {
		s.Balance()
	}
	if r.books != nil {
		if err := r.books.Balance(); err != nil {
			r.violate("transfers: %v", err)
		}
	}
	r.closeChapter()
	return nil
}

// live is one life of the broker. It ends with a kill: after a number of acknowledgements
// (acks), after a number of connections and messages (arrivals), or when all actors are
// done.
func (r *run) live(settle bool, acks, arrivals int64) error {
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
	l := r.beginLife(settle, acks, arrivals)
	l.Addr = r.addr
	if err := r.checkRetained(l); err != nil {
		return err
	}
	actors := r.startActors(l)
	r.awaitKill(l, p, actors)
	l.KilledAt.Store(lives.Now())
	if !p.Kill() {
		r.violate("life %d: the broker ended by itself; it said:\n%s", l.Number, p.Output())
	}
	l.DiedAt.Store(lives.Now())
	close(l.Dead)
	actors.Wait()
	r.between()
	return nil
}

// beginLife makes a life, and the actors' records ready for it.
func (r *run) beginLife(settle bool, acks, arrivals int64) *lives.Life {
	r.lives++
	l := &lives.Life{Number: r.lives, Settle: settle, Patience: r.Patience, Dead: make(chan struct{})}
	l.Acks.Arm(acks)
	l.Arrivals.Arm(arrivals)
	l.Attended.Arm(int64(len(r.subs)))
	r.prepareMessageActors()
	if r.books != nil {
		r.books.Open()
	}
	return l
}

// startActors has all actors live a life, until it is over.
func (r *run) startActors(l *lives.Life) *sync.WaitGroup {
	var actors sync.WaitGroup
	for _, a := range r.actors() {
		actors.Go(func() {
			err := a.Live(l)
			for errors.Is(err, lives.ErrAgain) && l.Rest() {
				err = a.Live(l)
			}
			if err != nil && !errors.Is(err, lives.ErrAgain) {
				r.violate("%v", err)
			}
		})
	}
	return &actors
}

// prepareMessageActors makes the records of the last life ready for the next one.
func (r *run) prepareMessageActors() {
	for _, p := range append(r.publishers[:len(r.publishers):len(r.publishers)], r.retainers...) {
		p.Prepare()
	}
	for _, s := range r.subs {
		s.ForgetUnsafe()
	}
}

// checkRetained checks the retained messages before the actors begin: in every settling
// life, and on average in a quarter of the others.
func (r *run) checkRetained(l *lives.Life) error {
	if len(r.retainers) == 0 || !l.Settle && r.rng.IntN(4) > 0 {
		return nil
	}
	lost, err := messages.CheckRetained(l, r.retainers)
	if l.Doors != nil && err != nil && !errors.Is(err, lives.ErrBroken) {
		return err // the connection has ended before all of them had come
	}
	if lost > 0 {
		r.sum.Messages.RetainedLost += lost
		for _, p := range r.retainers {
			p.Highest = 0 // so that the next check does not count the same loss again
		}
	}
	if errors.Is(err, lives.ErrBroken) {
		r.violate("life %d: %v", l.Number, err)
		return nil
	}
	return err
}

// awaitKill returns when the broker is to be killed, or has ended by itself.
func (r *run) awaitKill(l *lives.Life, p *process.Process, actors *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		actors.Wait()
		close(done)
	}()
	late := time.NewTimer(r.Patience)
	defer late.Stop()
	select {
	case <-p.Ended():
		return
	case <-done:
		return
	case <-l.Acks.Fired:
	case <-l.Arrivals.Fired:
	case <-late.C:
		r.violate("life %d: the actors were not done after %v (settling: %v); the broker said:\n%s", l.Number, r.Patience, l.Settle, p.Output())
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

// closeChapter checks the history of the chapter, and begins the next one with new keys
// and locks.
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
	r.chapter = store.NewChapter(r.chapter.Number+1, chapterKeys, chapterJoint, chapterLocks)
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

// violate adds a violation to the summary.
func (r *run) violate(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Violations = append(r.sum.Violations, fmt.Sprintf(format, args...))
}

func (r *run) violations() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sum.Violations)
}

// counted is the summary with the actors' counts. None of them may be running.
func (r *run) counted() *Summary {
	sum := r.sum
	sum.Seconds = time.Since(r.began).Seconds()
	m := &sum.Messages
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
		sum.Examples = append(sum.Examples, s.Examples...)
	}
	for _, t := range r.testators {
		m.Wills += t.Sessions
	}
	for _, a := range r.roamers {
		sum.Sessions.Resumed += a.Resumed
		sum.Sessions.Checks += a.Checks * sessions.Topics
	}
	if r.archivist != nil {
		sum.Store.Archived = r.archivist.Count
		sum.Processors = r.processors[0].Counts()
		sum.Transfers = r.books.Counts()
		sum.Timers = r.keeper.Counts
	}
	return &sum
}
