package consensus

import (
	"container/heap"
	cryptorand "crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/replica/lease"
	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
)

// A world is a cluster in one goroutine, whose time, disks and network are simulated. What
// happens, and in which order, follows from its seed alone. The nodes are the real ones: Core,
// on a real raftlog.Log, on files that forget what was not synced.
//
// Each event is one step of one node: it gets a message, its clock ticks, its disk writes,
// or syncs, its state machine takes an entry. After each event the world checks what must
// hold (see checks_test.go).
type world struct {
	plan
	rng    *rand.Rand
	now    time.Duration // of the world; no node sees it
	events events
	number int // of events, for their order
	trace  uint64

	nodes    []*node
	founders *raftpb.ConfState
	cut      map[[2]uint64]bool // messages from the one to the other are lost
	quiet    time.Duration      // until then clients only read
	loss     int                // percent of messages that are lost, and of those that are doubled
	appends  int                // messages with entries, or without, that leaders have sent
	facts
}

// plan is what a world is like, and what is broken in it on purpose.
type plan struct {
	seed  uint64
	nodes int
	lasts time.Duration // how long faults happen

	separations bool // the only faults are those of separate
	suspends    bool // machines are suspended, and wall clocks stepped
	shortLogs   bool // logs keep next to nothing, so nodes that come back need snapshots
	changes     bool // nodes are added and removed
	bars        bool // nodes are unfit for the leadership for a while, or for good

	noFsync      bool // the disks don't sync
	noLease      bool // leaders answer reads without a lease
	noPromise    bool // nodes vote although they have answered a leader
	longLease    bool // leases last one and a half election timeouts
	forgetVote   bool // votes and terms are not stored
	oldCopy      bool // a snapshot's state machine is older than its message says
	barsForGood  bool // unfit nodes are barred also if no other one leads
	oldMembers   bool // a start knows the members that founded the cluster only
	stoppedWalls bool // leases do not look at the wall clock
	tellsEarly   bool // nodes tell of removals, and apply them, before the disk says that they are committed
}

const (
	election = time.Second
	tick     = election / TicksPerElection
	// Rates of clocks differ by up to this much of a second in each second; the lease must bear it.
	drift = 0.14
)

// node is one machine.
type node struct {
	w    *world
	id   uint64
	disk *disk
	rate float64

	life   int // which start of the program; events of earlier ones are void
	up     bool
	paused time.Duration // until then nothing happens in the program
	asleep time.Duration // since then the machine is suspended, until paused; 0: it is not
	slept  time.Duration // for how long it was suspended before, in all
	step   time.Duration // by how much its wall clock was stepped
	slow   time.Duration // how long the disk takes
	half   bool          // a snapshot is being installed
	unfit  bool          // see Core.Bar
	led    time.Duration // when it knew a leader last, by its clock
	gaveUp bool          // it has found, as the leader, that its own removal is committed

	streaming int // snapshots that are being sent
	core      *Core
	log       *raftlog.Log

	storing  []*raftpb.Message
	applying []*raftpb.Message
	machine  machine           // in memory
	durable  machine           // in tables
	pending  map[uint64]uint64 // entries that were proposed: index, term
	asked    map[uint64]uint64 // reads: number, the last acknowledged entry when it was asked
	ready    uint64            // the last term in which the node was ready
}

// machine is the state machine: it knows which entries it has taken.
type machine struct {
	at   raftlog.Position
	sum  uint64 // of all entries up to at
	conf *raftpb.ConfState

	removed bool // one of them removes the node
}

type event struct {
	at     time.Duration
	number int
	node   *node // nil: the world's
	life   int
	run    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].number < e[j].number
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// random is where the library gets its randomness in this package's tests.
var random seededReader

type seededReader struct{ *rand.ChaCha8 }

func (r *seededReader) seed(seed uint64) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	r.ChaCha8 = rand.NewChaCha8(key)
}

func TestMain(m *testing.M) {
	random.seed(0)
	cryptorand.Reader = &random
	os.Exit(m.Run())
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// newWorld makes a world whose nodes are about to be started.
func newWorld(p plan) *world {
	random.seed(p.seed)
	w := &world{plan: p, rng: rand.New(rand.NewPCG(p.seed, 1)), cut: map[[2]uint64]bool{}}
	w.facts.init()
	conf := &raftpb.ConfState{}
	for i := range p.nodes {
		conf.Voters = append(conf.Voters, uint64(i+1))
	}
	founded := machine{at: raftlog.Position{Index: 1, Term: 1}, conf: conf}
	w.founders = conf
	for i := range p.nodes {
		n := &node{w: w, id: uint64(i + 1), disk: newDisk(), rate: 1 + drift*(2*w.rng.Float64()-1), durable: founded}
		w.nodes = append(w.nodes, n)
		w.must(raftlog.Create(n.disk, "raft", founded.at))
		w.after(w.between(0, tick), n, n.start)
	}
	return w
}

// must ends the seed: what it is told of must not happen.
func (w *world) must(err error) {
	if err != nil {
		w.violated("%v", err)
	}
}

func (w *world) between(from, to time.Duration) time.Duration {
	return from + time.Duration(w.rng.Int64N(int64(to-from)))
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

// after runs a step of a node, or of the world, some time later. The step of a node does not
// happen if its program has ended by then, and later if it is paused.
func (w *world) after(d time.Duration, n *node, run func()) {
	w.number++
	e := event{at: w.now + d, number: w.number, node: n, run: run}
	if n != nil {
		e.life = n.life
	}
	heap.Push(&w.events, e)
}

// run lets events happen until the time end.
func (w *world) run(end time.Duration) {
	for w.violation == nil && len(w.events) > 0 && w.events[0].at <= end {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		if n := e.node; n != nil {
			if n.life != e.life {
				continue
			}
			if n.paused > w.now {
				e.at = n.paused
				heap.Push(&w.events, e)
				continue
			}
			w.note(n.id, uint64(e.at))
		}
		e.run()
		w.check()
	}
	w.now = max(w.now, end)
}

// note adds to the trace, which tells whether two runs were the same.
func (w *world) note(values ...uint64) {
	h := fnv.New64a()
	for _, v := range append(values, w.trace) {
		_ = binary.Write(h, binary.LittleEndian, v)
	}
	w.trace = h.Sum64()
}

// clock is the time on the node's monotonic clock, which stands still while its machine is suspended.
func (n *node) clock() time.Duration {
	awake := n.w.now - n.slept
	if n.asleep > 0 {
		awake = n.asleep - n.slept
	}
	return time.Duration(n.id)*time.Hour + time.Duration(n.rate*float64(awake))
}

// moment is that, and the time on its wall clock, which goes on then.
func (n *node) moment() lease.Moment {
	wall := time.Duration(n.rate*float64(n.w.now)) + n.step
	if n.w.stoppedWalls {
		wall = 0
	}
	return lease.Moment{Monotonic: n.clock(), Wall: wall}
}

// suspend suspends the node's machine for a time.
func (n *node) suspend(d time.Duration) {
	w := n.w
	if n.asleep > 0 || n.paused > w.now || !n.up {
		return
	}
	n.asleep, n.paused = w.now, w.now+d
	w.suspensions++
	w.after(d, nil, n.wake)
}

// wake ends a suspension.
func (n *node) wake() {
	if n.asleep > 0 {
		n.slept += n.w.now - n.asleep
		n.asleep, n.paused = 0, n.w.now
	}
}

// start starts the program.
func (n *node) start() {
	w := n.w
	if n.durable.removed {
		return
	}
	var err error
	conf := n.durable.conf
	if w.oldMembers && n.durable.at.Index > 0 {
		conf = w.founders
	}
	n.log, err = raftlog.Open(raftlog.Options{
		FS: n.disk, Dir: "raft", SegmentBytes: 4 << 10, MemoryBytes: int64(1 + w.seed%3*1000),
		Applied: n.durable.at, Conf: conf,
	})
	if err != nil {
		w.violated("node %d can't start: %v", n.id, err)
		return
	}
	n.machine = n.durable
	n.log.SetSnapshots(n.snapshot)
	n.core, err = New(Options{ID: n.id, Log: n.log, Applied: n.durable.at.Index, Election: election, Logger: quiet}, n.clock())
	w.must(err)
	if w.longLease {
		n.core.lease = longLease()
	}
	n.core.removals.early = w.tellsEarly
	n.led = n.clock()
	n.up, n.gaveUp, n.storing, n.applying = true, false, nil, nil
	n.pending, n.asked = map[uint64]uint64{}, map[uint64]uint64{}
	n.tickLater()
	n.work()
}

func (n *node) tickLater() {
	n.w.after(time.Duration(float64(tick)/n.rate), n, func() {
		n.core.Tick(n.moment())
		n.bar()
		n.work()
		n.tickLater()
	})
}

// bar bars an unfit node while it knows a leader, and for five election timeouts afterwards, unless what is
// broken is that it is barred for good.
func (n *node) bar() {
	if !n.w.bars {
		return
	}
	if n.core.Office().Leader != 0 {
		n.led = n.clock()
	}
	n.core.Bar(n.unfit && (n.w.barsForGood || n.clock()-n.led < 5*election))
	if to := n.w.nodes[n.w.rng.IntN(len(n.w.nodes))]; n.unfit && n.core.Office().Leads && to.up && !to.unfit {
		_ = n.core.Transfer(to.id)
	}
}

// stop ends the program. With the power, what was not synced may be lost.
func (n *node) stop(power bool) {
	n.life++
	n.wake()
	n.up, n.paused = false, 0
	if n.half {
		n.half = false
		n.w.interrupted++
	}
	n.w.cutOff += n.streaming
	n.w.deposed += n.streaming
	n.streaming = 0
	if power {
		n.disk = n.disk.crashed(n.w.rng)
	}
}

// work does what the core asks for.
func (n *node) work() {
	if n.w.noPromise {
		n.core.promise.Make(-election - 1)
	}
	work := n.core.Work(n.clock())
	if !n.gaveUp && n.core.removals.isRemoved(n.core.node.BasicStatus().GetCommit()) {
		n.gaveUp = true
		n.w.gaveUp++
	}
	n.send(work.Send)
	idle := len(n.storing) == 0
	n.storing = append(n.storing, work.Store...)
	if idle && len(n.storing) > 0 {
		n.store()
	}
	idle = len(n.applying) == 0
	n.applying = append(n.applying, work.Apply...)
	if idle && len(n.applying) > 0 {
		n.apply()
	}
	for _, r := range work.Reads {
		n.w.readQuorum(n, r)
	}
}

// send gives messages to the network.
func (n *node) send(messages []*raftpb.Message) {
	w := n.w
	for _, m := range messages {
		if m.GetType() == raftpb.MsgApp {
			w.appends++
		}
		if raft.IsLocalMsg(m.GetType()) {
			w.violated("node %d sends %v", n.id, m.GetType())
		}
		copies := 1
		if w.chance(w.loss) {
			copies = 2 * w.rng.IntN(2)
		}
		if m.GetType() == raftpb.MsgSnap {
			n.stream(w.nodes[m.GetTo()-1], m)
			continue
		}
		for range copies {
			delay := w.between(200*time.Microsecond, 2*time.Millisecond)
			if w.chance(w.loss) {
				delay = w.between(0, 3*election)
			}
			w.deliver(n.id, w.nodes[m.GetTo()-1], m, delay)
		}
	}
}

// chunks is how many parts a snapshot is sent in.
const chunks = 5

// stream sends a snapshot over a connection, which ends with either program, when the network
// is cut, or when the sender loses its office. A copy of the state machine, as it is when the
// stream begins, is sent in chunks; with the last one the receiver gets the message.
func (n *node) stream(to *node, m *raftpb.Message) {
	w, life, copied := n.w, to.life, n.machine
	w.streams++
	n.streaming++
	if w.oldCopy {
		copied = n.durable
	}
	left := chunks
	var next func()
	next = func() {
		office := n.core.Office()
		broken := !to.up || to.life != life || w.cut[[2]uint64{n.id, to.id}] || w.cut[[2]uint64{to.id, n.id}] || !office.Leads || office.Term != m.GetTerm()
		switch left--; {
		case broken:
			w.cutOff++
			n.streaming--
			if !office.Leads || office.Term != m.GetTerm() {
				w.deposed++
			}
			n.core.ReportSnapshot(to.id, false)
			n.work()
		case left > 0 || to.paused > w.now:
			left = max(left, 1)
			w.after(w.between(time.Millisecond, 30*time.Millisecond)+n.slow, n, next)
		default:
			at := copied.at
			if w.oldCopy {
				at = n.machine.at
			}
			m.Snapshot = &raftpb.Snapshot{
				Data:     binary.LittleEndian.AppendUint64(nil, copied.sum),
				Metadata: &raftpb.SnapshotMetadata{Index: &at.Index, Term: &at.Term, ConfState: copied.conf},
			}
			w.arrived++
			n.streaming--
			to.core.Step(m, to.clock())
			to.work()
			n.core.ReportSnapshot(to.id, true)
			n.work()
		}
	}
	w.after(w.between(time.Millisecond, 30*time.Millisecond), n, next)
}

func (w *world) deliver(from uint64, to *node, m *raftpb.Message, delay time.Duration) {
	w.after(delay, nil, func() {
		if !to.up || w.cut[[2]uint64{from, to.id}] {
			return
		}
		w.after(0, to, func() { // later, if it is paused
			to.core.Step(m, to.clock())
			to.work()
		})
	})
}

// takes is how long a step of the disk takes.
func (n *node) takes() time.Duration {
	return n.w.between(50*time.Microsecond, time.Millisecond) + n.slow
}

// store stores the first of the messages that wait for the disk.
func (n *node) store() {
	n.w.after(n.takes(), n, func() {
		m := n.storing[0]
		s, at, isSnapshot := SnapshotOf(n.log, m)
		if !isSnapshot {
			n.write(m)
			return
		}
		n.half = true
		n.w.must(n.log.BeginSnapshot(s, at))
		n.w.interrupt(n)
		n.w.after(n.takes(), n, func() {
			snapshot := m.GetSnapshot()
			n.durable = machine{at: at, sum: binary.LittleEndian.Uint64(snapshot.GetData()), conf: snapshot.GetMetadata().GetConfState()}
			n.w.after(n.takes(), n, func() {
				n.w.must(n.log.EndSnapshot(at, n.durable.conf))
				n.half = false
				n.machine = n.durable
				n.w.snapshots++
				n.write(m)
			})
		})
	})
}

func (n *node) write(m *raftpb.Message) {
	if n.w.forgetVote {
		m.Vote = new(uint64)
	}
	sync, err := Store(n.log, m)
	n.w.must(err)
	n.w.stored(n, m.GetEntries())
	n.w.after(n.takes(), n, func() {
		if sync && !n.w.noFsync {
			n.w.must(n.log.Sync())
		}
		n.storing = n.storing[1:]
		n.send(n.core.Stored(m))
		if len(n.storing) > 0 {
			n.store()
		}
		n.work()
	})
}

// apply gives the first of the messages that wait for it to the state machine.
func (n *node) apply() {
	n.w.after(n.w.between(0, time.Millisecond), n, func() {
		m := n.applying[0]
		n.applying = n.applying[1:]
		for _, e := range m.GetEntries() {
			if e.GetIndex() <= n.machine.at.Index { // a snapshot has it
				continue
			}
			n.w.apply(n, e)
			if n.leaves(e) {
				return
			}
		}
		conf, err := n.core.Applied(m)
		n.w.must(err)
		if conf != nil {
			n.machine.conf = conf
		}
		if len(n.applying) > 0 {
			n.apply()
		}
		n.work()
	})
}

// snapshot offers the state machine to a follower, which will get a later one (see stream).
func (n *node) snapshot() (*raftpb.Snapshot, error) {
	if n.w.chance(10) {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	m := n.machine
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: &m.at.Index, Term: &m.at.Term, ConfState: m.conf}}, nil
}

// writeTables makes the state machine durable, and drops what the log need not keep.
func (n *node) writeTables() {
	if len(n.storing) > 0 {
		return // the log belongs to the goroutine that stores
	}
	n.durable = n.machine
	keep := n.w.rng.Uint64N(30)
	if n.w.shortLogs {
		keep /= 10
	}
	n.w.must(n.log.Compact(n.durable.at.Index - min(keep, n.durable.at.Index)))
}

// propose proposes an entry that no other is equal to.
func (n *node) propose() {
	data := fmt.Appendf(nil, "%d of node %d", n.w.number, n.id)
	p, err := n.core.Propose(data)
	if err != nil {
		return
	}
	n.pending[p.Index] = p.Term
	n.work()
}
