package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-mqtt/holdfast/internal/replica/lease"
	"github.com/holdfast-mqtt/holdfast/internal/replica/raftlog"
)

const (
	// TicksPerElection is how many ticks an election timeout has.
	TicksPerElection = 10
	// A node asks for votes after one tick more: the last tick may come just after it has
	// heard from the leader.
	electionTicks = TicksPerElection + 1

	maxMessageBytes  = 1 << 20  // of the entries in a message, if there is more than one
	maxInflightBytes = 64 << 20 // of entries that were sent to a node and not answered
	maxInflight      = 256      // messages of that kind
	maxUncommitted   = 256 << 20
)

// ErrNotLeader: this node may not propose, or read. It isn't the leader, or has not yet
// applied what earlier leaders have committed.
var ErrNotLeader = errors.New("this node is not the leader")

// ErrAlone: no other node has a vote, so none can take the leadership.
var ErrAlone = errors.New("no other node has a vote")

// ErrChanging: the other one of two nodes may be removed at this moment, and then none could take the leadership.
var ErrChanging = errors.New("a change of the cluster's two nodes is under way")

// ErrTooManyQuestions: as many of AskQuorum as are allowed are under way.
var ErrTooManyQuestions = errors.New("too many questions to the other nodes are under way")

// Options of New.
type Options struct {
	// ID of the node, which is not 0 and was never another node's.
	ID uint64
	// Log has been opened, with the membership of its state machine.
	Log *raftlog.Log
	// Applied is the index of the last entry that the state machine has.
	Applied uint64
	// Election is the election timeout. A leader that hears of no quorum for so long leaves
	// its office, and a node that hears of no leader for once to twice as long asks for
	// votes. Tick is called TicksPerElection times in it.
	Election time.Duration
	Logger   *slog.Logger // nil: slog.Default
}

// Office is what a node knows of the leadership.
type Office struct {
	Term   uint64
	Leader uint64 // 0: unknown
	// Leads: this node is the leader. Ready: it has also applied everything that earlier
	// leaders have committed, so it may propose and, with the lease, answer reads.
	Leads, Ready bool
}

// Work is what a Core asks its caller to do, see the package comment.
type Work struct {
	Send  []*raftpb.Message
	Store []*raftpb.Message
	Apply []*raftpb.Message
	Reads []Read
}

// Read tells that a question of AskQuorum was answered.
type Read struct {
	Number uint64
	Index  uint64 // the state machine must have this entry before the read is answered
}

// Proposed is an entry that was proposed. It is committed when an entry with its index and
// its term is applied; if another term has the index, it is lost.
type Proposed = raftlog.Position

// Core is one node's part in the consensus. One goroutine calls its methods, except for
// those of Lease. Every now is a time of the node's monotonic clock that does not go back; that of a round of
// the lease is one of its wall clock, too.
type Core struct {
	o       Options
	node    *raft.RawNode
	lease   *lease.Lease
	promise lease.Promise

	office    Office
	own       uint64          // index of the first entry of the own term as leader; 0: not known yet
	tail      uint64          // index of the last entry that the leader has proposed
	change    uint64          // index of the last change of the membership that it has proposed; 0: none
	applied   uint64          // index of the last entry that the state machine has
	appended  map[uint64]bool // nodes that the leader has sent an append to since the last tick
	asked     map[uint64]bool // rounds of the lease that AskQuorum began
	transfers bool            // the leadership is being given away, so there is no lease in this term
	barred    bool            // see Bar
	offered   offered         // while it is barred
	members   []uint64        // who may be leader
	removals  removals        // see removals.go
	spares    spares          // see spare.go
}

// New starts a node. It doesn't vote for one election timeout.
func New(o Options, now time.Duration) (*Core, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	c := &Core{o: o, lease: lease.New(o.Election), promise: lease.NewPromise(o.Election), asked: map[uint64]bool{}, appended: map[uint64]bool{}, applied: o.Applied}
	c.promise.Make(now) // to whatever leader it has answered before it was started
	node, err := raft.NewRawNode(&raft.Config{
		ID:                        o.ID,
		ElectionTick:              electionTicks,
		HeartbeatTick:             1,
		Storage:                   o.Log,
		Applied:                   o.Applied,
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             maxMessageBytes,
		MaxCommittedSizePerReady:  maxMessageBytes,
		MaxUncommittedEntriesSize: maxUncommitted,
		MaxInflightMsgs:           maxInflight,
		MaxInflightBytes:          maxInflightBytes,
		CheckQuorum:               true,
		PreVote:                   true,
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
		Logger:                    logger{o.Logger},
	})
	if err != nil {
		return nil, err
	}
	c.node = node
	state, conf, _ := o.Log.InitialState()
	c.members = conf.GetVoters()
	c.removals = removals{self: o.ID, stored: state.GetCommit(), told: state.GetCommit()}
	if err := c.removals.find(o.Log, state.GetCommit()); err != nil {
		return nil, err
	}
	c.settle()
	return c, nil
}

// Lease is the node's lease. It is valid only while the node leads and is ready.
func (c *Core) Lease() *lease.Lease { return c.lease }

// Office is what the node knows of the leadership now.
func (c *Core) Office() Office { return c.office }

// Tick is called TicksPerElection times in each election timeout.
func (c *Core) Tick(now lease.Moment) {
	c.node.Tick()
	clear(c.appended)
	c.spares.tick()
	c.settle()
	switch {
	case c.transfers:
		c.continueTransfer()
	case c.office.Ready:
		c.ask(now)
	}
}

// ask begins a round of the lease.
func (c *Core) ask(now lease.Moment) (number uint64) {
	number = c.lease.Begin(now)
	c.node.ReadIndex(binary.LittleEndian.AppendUint64(nil, number))
	return number
}

// maxAsked bounds the questions of AskQuorum that are under way.
const maxAsked = 1 << 10

// AskQuorum asks a quorum whether this node is still the leader. When Work has a Read with
// the number, every read that came before AskQuorum may be answered, once the state machine
// has the Read's entry. If the node loses its office there is none. One question is enough
// for all reads that wait. It fails with ErrNotLeader or ErrTooManyQuestions.
func (c *Core) AskQuorum(now lease.Moment) (number uint64, err error) {
	if !c.office.Ready {
		return 0, ErrNotLeader
	}
	if len(c.asked) >= maxAsked {
		return 0, ErrTooManyQuestions
	}
	number = c.ask(now)
	c.asked[number] = true
	return number, nil
}

// Step takes a message of another node.
func (c *Core) Step(m *raftpb.Message, now time.Duration) {
	if !takes(m.GetType()) || m.GetFrom() == c.o.ID || m.GetTo() != c.o.ID {
		return
	}
	switch m.GetType() {
	case raftpb.MsgTimeoutNow:
		if c.barred && c.declines(now) {
			return
		}
	case raftpb.MsgVote, raftpb.MsgPreVote:
		if !isForced(m) && c.promise.Binds(now) {
			return
		}
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap:
		if m.GetTerm() >= c.office.Term {
			c.promise.Make(now)
		}
	}
	_ = c.node.Step(m) // of a node that is not a member, for example
	c.spares.hear(m, c.members)
	c.removals.hear(m)
	c.settle()
}

// takes says whether nodes send messages of a type to each other.
func takes(t raftpb.MessageType) bool {
	switch t {
	case raftpb.MsgApp, raftpb.MsgAppResp, raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgPreVote, raftpb.MsgPreVoteResp,
		raftpb.MsgSnap, raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp, raftpb.MsgTimeoutNow:
		return true
	}
	return false
}

// isForced says whether a request for a vote is part of a transfer: the former leader has
// given up its lease, so promises to it need not be kept.
func isForced(m *raftpb.Message) bool { return string(m.GetContext()) == "CampaignTransfer" }

// Propose proposes an entry, whose data are kept and must not be changed. It fails with
// ErrNotLeader, or if too much is not committed yet.
func (c *Core) Propose(data []byte) (Proposed, error) {
	if !c.office.Ready || c.transfers {
		return Proposed{}, ErrNotLeader
	}
	if err := c.node.Propose(data); err != nil {
		return Proposed{}, err
	}
	return c.proposed(), nil
}

func (c *Core) proposed() Proposed {
	c.tail++
	return Proposed{Index: c.tail, Term: c.office.Term}
}

// Change proposes a change of the membership by one node. The library refuses a change while
// another is not applied: then the entry that it proposes instead changes nothing. It fails with
// ErrNotLeader, with ErrOwnRemoval, or if too much is not committed yet.
func (c *Core) Change(change *raftpb.ConfChange) (Proposed, error) {
	if !c.office.Ready || c.transfers {
		return Proposed{}, ErrNotLeader
	}
	if change.GetType() == raftpb.ConfChangeRemoveNode && change.GetNodeId() == c.o.ID {
		return Proposed{}, ErrOwnRemoval
	}
	if err := c.node.ProposeConfChange(change); err != nil {
		return Proposed{}, err
	}
	p := c.proposed()
	c.change = p.Index
	return p, nil
}

// Transfer gives the leadership away, to a node if it can, otherwise to another one. The
// leader proposes nothing and has no lease from then on, until its office ends. With ErrAlone or ErrChanging
// it goes on: that might never be.
func (c *Core) Transfer(to uint64) error {
	if !c.office.Leads {
		return ErrNotLeader
	}
	if !slices.ContainsFunc(c.members, func(id uint64) bool { return id != c.o.ID }) {
		return ErrAlone
	}
	if len(c.members) == 2 && (!c.office.Ready || c.applied < c.change) {
		return ErrChanging
	}
	c.transfers = true
	c.lease.Revoke()
	c.node.TransferLeader(to)
	c.settle()
	return nil
}

// Bar says whether this node should leave the leadership to others. While it is barred it does not ask for
// votes, and takes the leadership from a leader only if that finds no other node for long; it votes for
// others. A leader stays one. The caller lifts it when no other node leads for long.
func (c *Core) Bar(barred bool) { c.barred = barred }

// offered is when a leader has first wanted this node to take the leadership, in which term.
type offered struct {
	term uint64
	at   time.Duration
}

// offers times the election timeout is for how long a node that is barred leaves it to others to take the
// leadership from a leader, which tries each of them for one.
const offers = 3

func (c *Core) declines(now time.Duration) bool {
	if c.offered.term != c.office.Term {
		c.offered = offered{c.office.Term, now}
	}
	return now-c.offered.at < offers*c.o.Election
}

// continueTransfer tries the next member if a transfer has come to nothing.
func (c *Core) continueTransfer() {
	if c.node.BasicStatus().LeadTransferee != raft.None {
		return
	}
	for i, id := range c.members {
		if id != c.o.ID {
			c.members = append(append([]uint64(nil), c.members[i+1:]...), c.members[:i+1]...)
			c.node.TransferLeader(id)
			return
		}
	}
}

// Progress is how far a node is, as the leader knows. Match is the last entry that the node
// has stored. Active: it has answered within the last election timeout. Learner: it has no vote.
type Progress struct {
	Match   uint64
	Active  bool
	Learner bool
}

// Progress gives that of all members, by ID; nil: this node does not lead.
func (c *Core) Progress() map[uint64]Progress {
	if !c.office.Leads {
		return nil
	}
	all := map[uint64]Progress{}
	c.node.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		all[id] = Progress{Match: p.Match, Active: p.RecentActive || id == c.o.ID, Learner: p.IsLearner}
	})
	return all
}

// ReportUnreachable tells that messages to a node were lost.
func (c *Core) ReportUnreachable(id uint64) { c.node.ReportUnreachable(id) }

// ReportSnapshot tells whether a snapshot has reached a node.
func (c *Core) ReportSnapshot(id uint64, ok bool) {
	status := raft.SnapshotFinish
	if !ok {
		status = raft.SnapshotFailure
	}
	c.node.ReportSnapshot(id, status)
}

// settle finds out who leads, and ends the lease with the office: before any message leaves
// that this node sends without it.
func (c *Core) settle() {
	s := c.node.BasicStatus()
	next := Office{Term: s.GetTerm(), Leader: s.Lead, Leads: s.RaftState == raft.StateLeader}
	if next.Term != c.office.Term || !next.Leads {
		c.lease.Revoke()
		c.own, c.tail, c.change, c.transfers = 0, 0, 0, false
		clear(c.asked)
		c.spares = spares{}
		c.removals.untold = nil
	} else {
		next.Ready = c.office.Ready
	}
	c.office = next
}

// Work takes what is to be done.
func (c *Core) Work(now time.Duration) (w Work) {
	c.leaveIfRemoved()
	for c.node.HasReady() {
		ready := c.node.Ready()
		if !raft.IsEmptySnap(ready.Snapshot) {
			c.forget()
		}
		c.removals.add(ready.Entries)
		for _, m := range ready.Messages {
			switch {
			case m.GetTo() == raft.LocalAppendThread:
				c.follow(m.GetEntries())
				c.removals.secure(m)
				w.Store = append(w.Store, m)
			case m.GetTo() == raft.LocalApplyThread:
				c.removals.held = append(c.removals.held, m)
			case (m.GetType() == raftpb.MsgVote || m.GetType() == raftpb.MsgPreVote) && !isForced(m) && c.promise.Binds(now):
			case m.GetType() == raftpb.MsgPreVote && c.barred:
			case m.GetType() == raftpb.MsgApp && c.canWait(m):
			default:
				w.Send = c.hold(w.Send, c.removals.tell(m), now)
			}
		}
		for _, r := range ready.ReadStates {
			number := binary.LittleEndian.Uint64(r.RequestCtx)
			if !c.transfers {
				c.lease.Confirm(number)
			}
			if c.asked[number] {
				delete(c.asked, number)
				w.Reads = append(w.Reads, Read{Number: number, Index: r.Index})
			}
		}
		c.leaveIfRemoved()
	}
	c.removals.release(&w)
	w.Send = c.releaseHeld(w.Send, now)
	return w
}

// leaveIfRemoved has a leader whose own removal is committed give its office away, see removals.go.
func (c *Core) leaveIfRemoved() {
	if !c.office.Leads || c.transfers || !c.removals.isRemoved(c.node.BasicStatus().GetCommit()) {
		return
	}
	c.transfers = true
	c.lease.Revoke()
	c.continueTransfer()
}

// forget drops what waits to be applied, because a snapshot has it.
func (c *Core) forget() {
	for _, m := range c.removals.held {
		for _, r := range m.GetResponses() {
			_ = c.node.Step(r)
		}
	}
	c.removals.held, c.removals.all = nil, nil
}

// canWait says whether an append need not be sent, because it only tells a follower how far entries
// are committed: the next entries tell that as well, and the next tick's heartbeat does. Such a message,
// with its answer, would cost both nodes nearly as much as one with entries.
//
// Sent are those of a leader that has not applied its first entry, or a change of the membership
// (a node that is removed hears of it by such a message alone), those to a node that is not known
// to follow, and the first append to a node after a tick (the library sends one without entries
// to a node that has too many unanswered, and needs the answer).
func (c *Core) canWait(m *raftpb.Message) bool {
	isFirst := !c.appended[m.GetTo()]
	c.appended[m.GetTo()] = true
	if len(m.GetEntries()) > 0 || isFirst || c.own == 0 || c.applied < max(c.own, c.change) {
		return false
	}
	return c.replicates(m.GetTo())
}

// follow looks where the entries of the own term begin, and checks that they have the
// indexes that Propose has given out.
func (c *Core) follow(entries []*raftpb.Entry) {
	if !c.office.Leads || len(entries) == 0 || entries[len(entries)-1].GetTerm() != c.office.Term {
		return
	}
	last := entries[len(entries)-1].GetIndex()
	if c.own == 0 {
		c.own = last // a new leader appends one entry, and proposes none before it is applied
		c.tail = last
	}
	if last > c.tail {
		panic(fmt.Sprintf("consensus: entry %d is in the log, and the last that was proposed is %d", last, c.tail))
	}
}

// Stored tells that what m says is durable, and returns what is to be sent because of it.
func (c *Core) Stored(m *raftpb.Message) (send []*raftpb.Message) {
	if !raft.IsEmptySnap(m.GetSnapshot()) {
		c.members = m.GetSnapshot().GetMetadata().GetConfState().GetVoters()
	}
	for _, r := range m.GetResponses() {
		switch {
		case isDurableCommit(r):
			c.removals.stored = max(c.removals.stored, r.GetCommit())
			continue
		case r.GetTo() == c.o.ID:
			_ = c.node.Step(r)
			continue
		}
		send = append(send, r)
	}
	c.settle()
	return send
}

// Applied tells that the state machine has the entries of m. conf is the membership that it
// has to keep with them; nil: it has not changed.
func (c *Core) Applied(m *raftpb.Message) (conf *raftpb.ConfState, err error) {
	for _, e := range m.GetEntries() {
		switch e.GetType() {
		case raftpb.EntryConfChange:
			change := &raftpb.ConfChange{}
			if err := proto.Unmarshal(e.GetData(), change); err != nil {
				return nil, fmt.Errorf("entry %d is no change of the membership: %w", e.GetIndex(), err)
			}
			conf = c.node.ApplyConfChange(change)
			c.members = conf.GetVoters()
		case raftpb.EntryConfChangeV2:
			return nil, fmt.Errorf("entry %d changes several members at once, which this program never does", e.GetIndex())
		}
		if c.own != 0 && e.GetIndex() >= c.own {
			c.office.Ready = true
		}
		c.applied = e.GetIndex()
	}
	c.removals.applied(c.applied)
	for _, r := range m.GetResponses() {
		_ = c.node.Step(r)
	}
	c.settle()
	return conf, nil
}
