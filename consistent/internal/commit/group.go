package commit

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/timed"
)

// Group commit
//
// The changes of different keys share transactions. A change that comes while no transaction is
// under way is sent at once, and while fewer than inFlight are, with few changes. Otherwise it waits
// for one of them to end, or until those that wait fill a transaction: full ones are always sent. So
// a single message waits for none, and under load a transaction has as many changes as come while
// another one is written to the disk.
//
//	Commit ──► waiting ──► run: as many as fit ──► one TXN ──┬─ done: each has its Result
//	              ▲                                          ├─ refused because of one: it has its
//	              └── the caller decides to try again        │  Result or error; again without it
//	                                                         └─ refused twice, or as a whole:
//	                                                            each of the rest by itself
//
// A transaction is done as a whole or not at all, so one change whose state is not the key's any
// more, whose message is remembered, or whose output is refused, has nothing done. That one has its
// outcome then, and the others are sent again without it; after the second refusal each of them is
// sent by itself, all at the same time. So each change has its outcome after at most three
// requests, whatever the others are: no change can keep another one waiting, and as each request
// ends at least one change, there is no livelock either. A change whose key was changed by another
// instance is not in a group again: its caller commits it alone (Alone).
//
// If refusals are usual, because other instances change the same keys for example, groups are
// in vain. Therefore each refusal halves the number of changes that share a transaction, down to
// one, and each growAfter transactions that are done add one to it. As many more transactions are
// under way then, so that no change waits longer than without groups.

const (
	// inFlight is how many transactions of few changes are under way before others wait until they
	// are full, and fewChanges how many changes these have together.
	inFlight, fewChanges = 2, 16
	// widest is how many changes share a transaction at most.
	widest = 128
	// growAfter is how many transactions must be done for another change to be added to each.
	growAfter = 4
	// groupBytes is how large a transaction of several changes may be, about: the server reads
	// and writes all of it in one step.
	groupBytes = 256 << 10
	// changeBytes is what a change takes in a request besides its state and outputs, about, and
	// messageBytes what each of its messages does.
	changeBytes, messageBytes = 300, 200
)

// Group has changes of different keys share transactions. It is safe for concurrent use. A key
// has one change at a time: the next one comes when Commit of the one before has returned. So no
// transaction has two of a key: one whose caller has stopped waiting is under way by then, or is
// dropped. Changes that only say which messages are done are apart from that; no two changes that
// wait name the same message.
type Group struct {
	o    Options
	idle chan struct{} // a goroutine that runs no transaction takes one

	mu         sync.Mutex
	waiting    []*member // under mu
	operations int       // under mu: of those that wait
	bytes      int64     // under mu: of those that wait
	underWay   int       // under mu: transactions
	carried    int       // under mu: changes of these
	most       int       // under mu: changes in a transaction
	done       int       // under mu: transactions since most has changed
}

// Options are those of a Group.
type Options struct {
	Context    context.Context // of the transactions
	Timeout    time.Duration   // of each of them
	Transact   func(context.Context, Request) (Result, error)
	Limit      *Limit        // how many operations a transaction has
	PacketSize func() uint32 // the largest packet that the server takes, in bytes; 0: any
}

// NewGroup makes a Group.
func NewGroup(o Options) *Group { return &Group{o: o, idle: make(chan struct{}), most: widest} }

// Waiter gets what came of a change: its own Result or error, which may be that of a transaction
// with others. Ended is called by a goroutine that has other changes to see to, and must not block.
type Waiter interface{ Ended(Result, error) }

// member is a change in a group.
type member struct {
	*Change
	waiter Waiter
	gone   bool // under Group.mu: its caller has stopped waiting
}

// outcome is for a caller that waits.
type outcome struct {
	result Result
	err    error
}

type outcomes chan outcome // buffered

func (o outcomes) Ended(r Result, err error) { o <- outcome{r, err} }

// Commit carries a change out, with others or by itself, and returns its own Result or error. An
// error may be that of a transaction with others. When ctx ends the change may be carried out
// nevertheless, if the error is not nil.
func (g *Group) Commit(ctx context.Context, c *Change) (Result, error) {
	ended := make(outcomes, 1)
	m := g.start(c, ended)
	select {
	case o := <-ended:
		return o.result, o.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	m.gone = true
	g.mu.Unlock()
	select {
	case o := <-ended:
		return o.result, o.err
	default:
		return Result{}, ctx.Err()
	}
}

// Start is Commit without waiting: w gets what came of it, perhaps before Start has returned. The
// change ends with Options.Context at the latest.
func (g *Group) Start(c *Change, w Waiter) { g.start(c, w) }

func (g *Group) start(c *Change, w Waiter) *member {
	m := &member{Change: c, waiter: w}
	g.mu.Lock()
	g.add(m)
	begin := g.mayStart()
	if begin {
		g.underWay++
	}
	g.mu.Unlock()
	if begin {
		select {
		case g.idle <- struct{}{}:
		default:
			go g.run()
		}
	}
	return m
}

// Waiting is how many changes wait for a transaction, which tests wait for.
func (g *Group) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}

// add adds one to those that wait. The caller holds mu.
func (g *Group) add(m *member) {
	g.waiting = append(g.waiting, m)
	g.operations += m.Operations()
	g.bytes += m.bytes()
}

// mayStart tells whether another transaction may begin: there are few under way, for so many
// changes as share one, or these have few changes, or those that wait fill one. The caller holds mu.
func (g *Group) mayStart() bool {
	switch {
	case len(g.waiting) == 0:
		return false
	case g.underWay < widest/g.most, g.underWay < inFlight && g.carried < fewChanges:
		return true
	default:
		return g.tooMuch(len(g.waiting), g.operations, g.bytes)
	}
}

// tooMuch tells whether that is more than one transaction may have. The caller holds mu.
func (g *Group) tooMuch(changes, operations int, bytes int64) bool {
	limit := int64(groupBytes)
	if packet := int64(g.o.PacketSize()); packet > 0 {
		limit = min(limit, packet/2)
	}
	return changes > g.most || operations > g.o.Limit.Most() || bytes > limit
}

// timers are the timers that a transaction sets and cancels. Each may occur once, or the server
// refuses it.
type timers map[string]struct{}

// add adds those of a change, or nothing if one is there already.
func (t *timers) add(c *Change) (ok bool) {
	ids := slices.Clone(c.Cancels)
	for i := range c.Outputs {
		if id, timer := timed.ID(&c.Outputs[i]); timer && id != "" {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		if _, twice := (*t)[id]; twice {
			return false
		}
	}
	if *t == nil && len(ids) > 0 {
		*t = make(timers)
	}
	for _, id := range ids {
		(*t)[id] = struct{}{}
	}
	return true
}

// bytes is how large the change is in a request, about.
func (c *Change) bytes() int64 {
	if done := int64(len(c.Done)); done > 0 {
		return done * (int64(len(c.Key)) + messageBytes)
	}
	return c.Size + int64(len(c.Key)+len(c.State)) + changeBytes + messageBytes*int64(len(c.Messages))
}

// take takes as many of those that wait as fit in one transaction. What is about a timer that it
// has already waits for the next.
func (g *Group) take() (taken []*member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all, operations, bytes := g.waiting, 0, int64(0)
	g.waiting, g.operations, g.bytes = nil, 0, 0
	var t timers
	for i, m := range all {
		if m.gone {
			continue
		}
		operations += m.Operations()
		bytes += m.bytes()
		if len(taken) > 0 && g.tooMuch(len(taken)+1, operations, bytes) {
			for _, m := range all[i:] {
				if !m.gone {
					g.add(m)
				}
			}
			break
		}
		if !t.add(m.Change) {
			g.add(m)
			continue
		}
		taken = append(taken, m)
	}
	g.carried += len(taken)
	return taken
}

// run carries out transactions, until the Group's context ends: a goroutine that has sent one has
// the stack for the next.
func (g *Group) run() {
	for {
		for more := true; more; {
			runtime.Gosched() // tasks that can go on add their changes first
			changes := g.take()
			n := len(changes)
			if n > 0 {
				g.carryOut(changes)
			}
			g.mu.Lock()
			g.underWay--
			g.carried -= n
			if more = g.mayStart(); more {
				g.underWay++
			}
			g.mu.Unlock()
		}
		select {
		case <-g.idle:
		case <-g.o.Context.Done():
			return
		}
	}
}

// refusalsBound is after how many refusals each change is sent by itself.
const refusalsBound = 2

// carryOut gives each of some changes its outcome.
func (g *Group) carryOut(changes []*member) {
	for range refusalsBound {
		if len(changes) <= 1 {
			break
		}
		result, err := g.transact(changes)
		if err == nil && result.Outcome == txn.Committed && len(result.Also) == len(changes)-1 {
			g.grow()
			also := result.Also
			result.Also = nil
			changes[0].waiter.Ended(result, nil)
			for i, m := range changes[1:] {
				m.waiter.Ended(also[i], nil)
			}
			return
		}
		of := result.Because - 1
		if of < 0 || of >= len(changes) || isOfTheWhole(err) {
			if isOfTheWhole(err) {
				g.shrink(len(changes))
				g.o.Limit.Learn(err, operations(changes))
			}
			break
		}
		g.shrink(len(changes))
		changes[of].waiter.Ended(result, err)
		changes = slices.Delete(changes, of, of+1)
	}
	var each sync.WaitGroup
	for _, m := range changes[min(1, len(changes)):] {
		each.Go(func() { g.alone(m) })
	}
	if len(changes) > 0 {
		g.alone(changes[0])
	}
	each.Wait()
}

// isOfTheWhole tells whether a transaction was refused because of how much it is: the operation
// that the error names is only the first that is too many.
func isOfTheWhole(err error) bool {
	quota := RefusedFor(err)
	return quota == QuotaOperations || quota == quotaDeliveries
}

func operations(changes []*member) (n int) {
	for _, m := range changes {
		n += m.Operations()
	}
	return n
}

func (g *Group) alone(m *member) {
	g.mu.Lock()
	gone := m.gone
	g.mu.Unlock()
	if gone {
		return
	}
	result, err := g.transact([]*member{m})
	m.waiter.Ended(result, err)
}

func (g *Group) transact(changes []*member) (Result, error) {
	ctx, cancel := context.WithTimeout(g.o.Context, g.o.Timeout)
	defer cancel()
	r := changes[0].Request
	if len(changes) > 1 {
		r.Also = make([]Request, 0, len(changes)-1)
		for _, m := range changes[1:] {
			r.Also = append(r.Also, m.Request)
		}
	}
	return g.o.Transact(ctx, r)
}

// shrink has fewer changes share a transaction, as one of so many was refused.
func (g *Group) shrink(changes int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.most, g.done = max(1, min(g.most, changes/2)), 0
}

// grow counts a transaction that is done.
func (g *Group) grow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.done++; g.done >= growAfter {
		g.most, g.done = min(g.most+1, widest), 0
	}
}
