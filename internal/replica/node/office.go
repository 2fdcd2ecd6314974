package node

import (
	"github.com/holdfast-mqtt/holdfast/internal/replica/consensus"
	"github.com/holdfast-mqtt/holdfast/internal/replica/lease"
)

// Office is this node's leadership in one term, from when it has what earlier leaders have
// committed. Its methods are safe for concurrent use.
type Office struct {
	n     *Node
	term  uint64
	from  uint64 // entries up to this one were committed before it began
	lease *lease.Lease
	lost  chan struct{}
}

// Lost is closed when the node has lost the office: memory may hold what was not committed.
func (o *Office) Lost() <-chan struct{} { return o.lost }

// Term is the term of the office.
func (o *Office) Term() uint64 { return o.term }

// close ends the office. Node.mu is held.
func (o *Office) close() { close(o.lost) }

func (o *Office) isLost() bool {
	select {
	case <-o.lost:
		return true
	default:
		return false
	}
}

// AwaitRead returns true if at some moment since it was called no other node was the leader: what was
// asked of this node before the call may be answered from its memory. It waits while the lease
// is not valid, and returns false when the office is lost.
//
// The office is looked at after the lease: that of a later office is valid only after this one
// was closed.
func (o *Office) AwaitRead() bool {
	if readsUnchecked || o.n.o.unsafeReads {
		return true
	}
	if !o.n.o.QuorumReads && o.lease.Valid(o.n.moment()) {
		return !o.isLost()
	}
	return o.askQuorum() && !o.isLost()
}

// question is a round of AskQuorum and the readers that wait for it.
type question struct {
	number  uint64
	readers []chan bool // capacity 1 each
}

func (q *question) answer(leads bool) {
	for _, r := range q.readers {
		r <- leads
	}
}

// askQuorum asks a quorum whether this node leads. All readers that come while a round is under
// way wait for the next one, because theirs came after it had begun.
func (o *Office) askQuorum() bool {
	n, answer := o.n, make(chan bool, 1)
	if !n.do(func() {
		if n.wants == nil {
			n.wants = &question{}
		}
		n.wants.readers = append(n.wants.readers, answer)
		n.askNext()
	}) {
		return false
	}
	select {
	case leads := <-answer:
		return leads
	case <-o.lost:
		return false
	case <-n.ending.Done():
		return false
	}
}

// askNext begins the next round, unless one is under way. deciding is held.
func (n *Node) askNext() {
	if n.asking != nil || n.wants == nil {
		return
	}
	number, err := n.core.AskQuorum(n.moment())
	if err != nil {
		n.wants.answer(false)
		n.wants = nil
		return
	}
	n.asking, n.wants = n.wants, nil
	n.asking.number = number
}

// answer tells readers that a quorum has answered. All that the leader has committed is in
// memory before, so a Read's index does not matter.
func (n *Node) answer(reads []consensus.Read) {
	for _, r := range reads {
		if n.asking != nil && n.asking.number == r.Number {
			n.asking.answer(true)
			n.asking = nil
		}
	}
	n.askNext()
}

// refuse tells readers that the office was lost. deciding is held.
func (n *Node) refuse() {
	for _, q := range []*question{n.asking, n.wants} {
		if q != nil {
			q.answer(false)
		}
	}
	n.asking, n.wants = nil, nil
}
