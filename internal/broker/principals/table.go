package principals

import (
	"container/heap"
	"container/list"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// Options configures a Table.
type Options struct {
	Connections int          // that all principals may have together
	Reserve     int          // connections beyond them, for principals with the reserve
	Memory      *memory.Pool // charged with records; nil: nothing is charged
	// Now is the clock of Rates, which never steps; nil: it stands still.
	Now func() time.Duration
}

// Table has the principals. Its methods are safe for concurrent use. A record lasts as long
// as the principal has a connection or a session, and beyond that until what it has
// published does not count any more: otherwise it could publish faster by connecting again
// and again. There are at most as many records of the second sort as there may be
// connections; beyond that the oldest goes.
type Table struct {
	o Options

	mu            lockrank.Mutex[lockrank.Principals]
	byName        map[string]*Principal // guarded by mu, as all below and the places of sessions and connections
	bySessions    ranking
	byConnections ranking
	bytes         int64     // that Options.Memory is charged with
	lingering     list.List // of *Principal: those without connection and session, the oldest first
	counted       int       // connections that count against Options.Connections
	reserved      int       // connections in the reserve
	strangers     places    // connections whose client is not known yet, and which may make room; the oldest first
}

// Principal is the record of one principal.
type Principal struct {
	name          string
	rates         Rates
	subscriptions atomic.Int64 // of its sessions

	refs        int           // connections that refer to the record; guarded by Table.mu, as all below
	connections int           // that are to stay
	counted     places        // those of them that count against Options.Connections, the newest last
	sessions    int           // connected or away
	away        list.List     // sessions whose client is away, the longest away first
	index       [2]int        // in the rankings
	lingers     *list.Element // in Table.lingering; nil: it isn't
}

// recordMemory is about what a record takes besides its name: itself, its places in the map
// and in both rankings.
const recordMemory = 320

// The rankings, by their place in Principal.index.
const (
	sessionRanking = iota
	connectionRanking
)

// New is a Table without principals.
func New(o Options) *Table {
	if o.Now == nil {
		o.Now = func() time.Duration { return 0 }
	}
	return &Table{
		o: o, byName: make(map[string]*Principal),
		bySessions:    ranking{place: sessionRanking, size: func(p *Principal) int { return p.sessions }},
		byConnections: ranking{place: connectionRanking, size: func(p *Principal) int { return p.counted.len }},
	}
}

// record gives the record of a principal, a new one if there is none; mu is held.
func (t *Table) record(name string) *Principal {
	t.expire()
	p := t.byName[name]
	if p != nil && p.lingers != nil {
		t.lingering.Remove(p.lingers)
		p.lingers = nil
	}
	if p == nil {
		p = &Principal{name: name}
		t.byName[name] = p
		heap.Push(&t.bySessions, p)
		heap.Push(&t.byConnections, p)
		t.charge(recordMemory + int64(len(name)))
	}
	return p
}

// changed puts a principal where it belongs in the rankings. If it has nothing left, it is
// forgotten as soon as what it has published does not count any more; mu is held.
func (t *Table) changed(p *Principal) {
	heap.Fix(&t.bySessions, p.index[sessionRanking])
	heap.Fix(&t.byConnections, p.index[connectionRanking])
	switch {
	case p.refs > 0 || p.sessions > 0:
	case p.rates.idleAt() <= t.o.Now():
		t.forget(p)
	default:
		p.lingers = t.lingering.PushBack(p)
		if t.lingering.Len() > t.o.Connections {
			t.forget(t.lingering.Front().Value.(*Principal))
		}
	}
}

// expire forgets principals that linger and needn't any more: it looks at two of them each
// time that a record is asked for, so that they are forgotten faster than they come; mu is
// held.
func (t *Table) expire() {
	for range min(2, t.lingering.Len()) {
		first := t.lingering.Front()
		if p := first.Value.(*Principal); p.rates.idleAt() <= t.o.Now() {
			t.forget(p)
		} else {
			t.lingering.MoveToBack(first)
		}
	}
}

// forget removes the record of a principal; mu is held.
func (t *Table) forget(p *Principal) {
	if p.lingers != nil {
		t.lingering.Remove(p.lingers)
		p.lingers = nil
	}
	heap.Remove(&t.bySessions, p.index[sessionRanking])
	heap.Remove(&t.byConnections, p.index[connectionRanking])
	delete(t.byName, p.name)
	t.charge(-recordMemory - int64(len(p.name)))
}

// charge charges the pool of memory, or with a negative number credits it; mu is held.
func (t *Table) charge(bytes int64) {
	t.bytes += bytes
	t.o.Memory.Charge(memory.Sessions, bytes)
}

// Most is what the principal with most of something has.
type Most struct {
	Name  string // empty: no principal has any
	Count int
}

// Figures are a moment's view of a Table.
type Figures struct {
	Principals      int   // that have a connection or a session
	Bytes           int64 // that the pool of memory is charged with for them
	Reserved        int   // connections in the reserve
	MostConnections Most  // of those that count against Options.Connections
	MostSessions    Most
}

// Figures gives the current figures.
func (t *Table) Figures() Figures {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Figures{
		Principals: len(t.byName) - t.lingering.Len(), Bytes: t.bytes, Reserved: t.reserved,
		MostConnections: t.byConnections.most(), MostSessions: t.bySessions.most(),
	}
}

// ranking is a heap of all principals, the one with most of something first.
type ranking struct {
	place int // in Principal.index
	size  func(*Principal) int
	all   []*Principal
}

func (r *ranking) most() Most {
	if len(r.all) == 0 || r.size(r.all[0]) == 0 {
		return Most{}
	}
	return Most{Name: r.all[0].name, Count: r.size(r.all[0])}
}

func (r *ranking) Len() int           { return len(r.all) }
func (r *ranking) Less(i, j int) bool { return r.size(r.all[i]) > r.size(r.all[j]) }
func (r *ranking) Swap(i, j int) {
	r.all[i], r.all[j] = r.all[j], r.all[i]
	r.all[i].index[r.place], r.all[j].index[r.place] = i, j
}

func (r *ranking) Push(x any) {
	p := x.(*Principal)
	p.index[r.place] = len(r.all)
	r.all = append(r.all, p)
}

func (r *ranking) Pop() any {
	last := len(r.all) - 1
	p := r.all[last]
	r.all[last] = nil
	r.all = r.all[:last]
	return p
}
