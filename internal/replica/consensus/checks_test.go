package consensus

import (
	"errors"
	"fmt"
	"hash/fnv"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
)

// facts is what the world has seen, which no node may contradict.
type facts struct {
	violation error

	leaders map[uint64]uint64                // by term
	logged  map[raftlog.Position]loggedEntry // all entries that were ever in a log
	applied map[uint64]appliedEntry          // by index: what state machines have
	acked   map[uint64]uint64                // by term: the last entry that a client was told of
	lastAck uint64                           // the last one of all

	acks, elections, snapshots, reads, quorumReads int

	streams, cutOff, arrived int // snapshots that were begun to be sent; whose connection broke; that arrived
	deposed                  int // of which the leader lost its office, or ended, meanwhile
	interrupted              int // installations that a crash interrupted

	changed     int // changes of the members that were committed
	left        int // nodes that ended because they were removed
	barred      int // times that a node was found unfit for the leadership
	suspensions int // machines that were suspended
	gaveUp      int // leaders that found that their own removal is committed, and so gave their office away
}

type loggedEntry struct {
	before uint64 // term of the entry before
	sum    uint64
}

type appliedEntry struct {
	term uint64
	sum  uint64 // of the state machine afterwards
}

func (f *facts) init() {
	f.leaders = map[uint64]uint64{}
	f.logged = map[raftlog.Position]loggedEntry{}
	f.applied = map[uint64]appliedEntry{}
	f.acked = map[uint64]uint64{}
}

func (w *world) violated(format string, args ...any) {
	if w.violation == nil {
		w.violation = fmt.Errorf("%v: "+format, append([]any{w.now}, args...)...)
	}
}

var errNoProgress = errors.New("no progress after all faults have ended")

// check runs after each event.
func (w *world) check() {
	var holder *node
	for _, n := range w.nodes {
		if !n.up {
			continue
		}
		o := n.core.Office()
		if o.Leads {
			if first, known := w.leaders[o.Term]; !known {
				w.leaders[o.Term] = n.id
				w.elections++
				w.note(o.Term, n.id)
			} else if first != n.id {
				w.violated("nodes %d and %d both lead in term %d", first, n.id, o.Term)
			}
		}
		if o.Ready && n.ready < o.Term {
			n.ready = o.Term
			w.complete(n, o.Term)
		}
		if w.holds(n) {
			if holder != nil && !w.noLease {
				w.violated("nodes %d and %d both have a lease", holder.id, n.id)
			}
			holder = n
		}
	}
}

// holds says whether a node would answer a read now.
func (w *world) holds(n *node) bool {
	return n.up && n.asleep == 0 && n.core.Office().Ready && (w.noLease || n.core.Lease().Valid(n.moment()))
}

// complete checks a leader that has become ready: it has everything that was acknowledged
// in earlier terms.
func (w *world) complete(n *node, term uint64) {
	for earlier, index := range w.acked {
		if earlier < term && n.machine.at.Index < index {
			w.violated("node %d is ready to lead in term %d with entries up to %d, and entry %d of term %d was acknowledged", n.id, term, n.machine.at.Index, index, earlier)
		}
	}
}

// stored checks entries that a node has written: those of equal index and term are equal,
// and so are all before them.
func (w *world) stored(n *node, entries []*raftpb.Entry) {
	for _, e := range entries {
		at := raftlog.Position{Index: e.GetIndex(), Term: e.GetTerm()}
		term, err := n.log.Term(at.Index - 1)
		if err != nil {
			w.violated("node %d has no entry before %d: %v", n.id, at.Index, err)
			return
		}
		next := loggedEntry{before: term, sum: sum(0, e)}
		if first, known := w.logged[at]; known && first != next {
			w.violated("node %d has another entry %d of term %d than an earlier one", n.id, at.Index, at.Term)
		}
		w.logged[at] = next
	}
}

func sum(before uint64, e *raftpb.Entry) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %d %d %d %s", before, e.GetIndex(), e.GetTerm(), e.GetType(), e.GetData())
	return h.Sum64()
}

// apply gives an entry to a node's state machine, and acknowledges it if the node has
// proposed it.
func (w *world) apply(n *node, e *raftpb.Entry) {
	index, term := e.GetIndex(), e.GetTerm()
	if index != n.machine.at.Index+1 {
		w.violated("node %d applies entry %d after entry %d", n.id, index, n.machine.at.Index)
	}
	n.machine.at, n.machine.sum = raftlog.Position{Index: index, Term: term}, sum(n.machine.sum, e)
	next := appliedEntry{term, n.machine.sum}
	if first, known := w.applied[index]; known && first != next {
		w.violated("node %d applies entry %d of term %d, and another node has applied one of term %d, or had another state", n.id, index, term, first.term)
	}
	w.applied[index] = next
	w.noteChange(n, e)
	if n.pending[index] != term {
		return
	}
	delete(n.pending, index)
	for _, other := range w.nodes {
		if w.holds(other) && !w.noLease && other.machine.at.Index < index {
			w.violated("node %d acknowledges entry %d while node %d has a lease and entries up to %d", n.id, index, other.id, other.machine.at.Index)
		}
	}
	w.acks++
	w.acked[term] = max(w.acked[term], index)
	w.lastAck = max(w.lastAck, index)
}

// read reads at a node that may answer from its memory.
func (w *world) read(n *node) {
	if !w.holds(n) {
		return
	}
	w.reads++
	if n.machine.at.Index < w.lastAck {
		w.violated("node %d answers a read with the state after entry %d, and entry %d was acknowledged", n.id, n.machine.at.Index, w.lastAck)
	}
}

// askQuorum begins a read without a lease.
func (w *world) askQuorum(n *node) {
	if number, err := n.core.AskQuorum(n.moment()); err == nil {
		n.asked[number] = w.lastAck
		n.work()
	}
}

func (w *world) readQuorum(n *node, r Read) {
	w.quorumReads++
	if least := n.asked[r.Number]; r.Index < least {
		w.violated("node %d answers a read with the state after entry %d, and entry %d was acknowledged before the read", n.id, r.Index, least)
	}
	delete(n.asked, r.Number)
}
