package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/clocks"
	"github.com/holdfast-mqtt/holdfast/internal/replica/consensus"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
)

// The first bytes of connections between nodes that are about an operator's questions.
const (
	// StatusMagic is for the status of a node, which fronts ask for, too.
	StatusMagic   = "holdfast status1"
	transferMagic = "holdfast transf1"
)

const (
	askTimeout        = 2 * time.Second        // for the answer of one node
	leaderlessTimeout = time.Second            // the same while no leader answers
	silentTimeout     = 500 * time.Millisecond // the same of one that the leader does not hear
	transferTimeout   = 10 * time.Second       // for the leadership to change
	maxAnswer         = 64 << 10               // bytes
)

// Report is what is known of a cluster.
type Report struct {
	Node   string `json:"node"` // the one that was asked
	Leader string `json:"leader,omitempty"`
	Nodes  []Line `json:"nodes"`           // by name
	Level  int    `json:"level,omitempty"` // format level of the cluster; 0: no node has said it
	// Quorum says whether as many nodes answer as the cluster needs. Missing are those that
	// do not.
	Quorum  bool     `json:"quorum"`
	Missing []string `json:"missing,omitempty"`
	// ClockBase is the node with whose clock those of the others are compared, as no majority of clocks
	// agrees; empty: one does.
	ClockBase string `json:"clock_base,omitempty"`
}

// Line is one node of a Report.
type Line struct {
	Name    string `json:"name"`
	Address string `json:"address"` // of its cluster port
	Role    string `json:"role"`    // as package node has them, or Unreachable
	Term    uint64 `json:"term"`
	Lag     uint64 `json:"lag"` // entries behind the leader, as far as that is known
	// Received of ReceiveBytes bytes of the leader's data have arrived at a node that is
	// receiving them.
	Received     int64 `json:"received,omitempty"`
	ReceiveBytes int64 `json:"receive_bytes,omitempty"`
	Learner      bool  `json:"learner,omitempty"` // the node has no vote yet
	Level        int   `json:"level,omitempty"`   // highest format level that its program knows
	// ClockAheadMs is by how many ms its wall clock is ahead of the median of the clocks of a majority, or of
	// that of Report.ClockBase; negative: behind; 0: it is not, not for certain, or it is not known.
	// Unfit: the node leaves the leadership to others because of that.
	ClockAheadMs int64  `json:"clock_ahead_ms,omitempty"`
	Unfit        bool   `json:"unfit,omitempty"`
	Error        string `json:"error,omitempty"`
	Admin        string `json:"admin,omitempty"` // HOST:PORT of its console; empty: it has none, or is not reached
}

// Unreachable is the role of a node that does not answer.
const Unreachable = "unreachable"

// Reporter answers for a node. Its methods are safe for concurrent use.
type Reporter struct {
	node    *node.Node
	spread  time.Duration
	copying atomic.Bool // a backup is under way
}

// NewReporter makes the one of an open node. Clocks that are at most spread apart may be those of a
// majority, with which it compares the others.
func NewReporter(n *node.Node, spread time.Duration) *Reporter {
	return &Reporter{node: n, spread: spread}
}

// Streams are the handlers for node.Options.Streams. They use the node that find returns, which is nil
// until the node is open.
func Streams(find func() *node.Node) map[string]func(net.Conn) {
	return map[string]func(net.Conn){
		StatusMagic:   func(c net.Conn) { answerStatus(c, find()) },
		transferMagic: func(c net.Conn) { answerTransfer(c, find()) },
		changeMagic:   func(c net.Conn) { answerChange(c, find()) },

		committedMagic: func(c net.Conn) { answerCommitted(c, find()) },
	}
}

func answerStatus(c net.Conn, n *node.Node) {
	defer c.Close()
	if n == nil {
		return
	}
	_ = c.SetDeadline(time.Now().Add(askTimeout))
	_ = json.NewEncoder(c).Encode(n.Status())
}

// transferRequest asks a leader to give the leadership away, to a node or, if To is empty, to the one
// that is furthest.
type transferRequest struct {
	To string `json:"to"`
}

// transferred answers it.
type transferred struct {
	Error string `json:"error,omitempty"`
}

func answerTransfer(c net.Conn, n *node.Node) {
	defer c.Close()
	if n == nil {
		return
	}
	_ = c.SetDeadline(time.Now().Add(transferTimeout))
	var q transferRequest
	if json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&q) != nil {
		return
	}
	var a transferred
	if err := give(context.Background(), n, q.To); err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(c).Encode(a)
}

// give has a leader give the leadership to the node of this name.
func give(ctx context.Context, n *node.Node, to string) error {
	ctx, cancel := context.WithTimeout(ctx, transferTimeout/2)
	defer cancel()
	s := n.Status()
	var id node.ID
	if to != "" {
		m, err := find(&s, to)
		if err != nil {
			return err
		}
		if id = m.ID; id == s.ID {
			return fmt.Errorf("node %s leads already", to)
		}
		if m.Learner {
			return fmt.Errorf("node %s has no vote yet, because it lacks data", to)
		}
		if !m.Active {
			return fmt.Errorf("node %s does not answer the leader: look at it first", to)
		}
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		asked, _, err := askNode(asking, n, m)
		var late net.Error
		switch {
		case asking.Err() != nil, errors.As(err, &late) && late.Timeout(): // it is paused, for example, and would take the leadership when it goes on
			return fmt.Errorf("node %s does not answer in time: look at it first", to)
		case err != nil:
			return fmt.Errorf("node %s does not answer: look at it first: %w", to, err)
		case asked.Unfit:
			return fmt.Errorf("node %s does not take the leadership, because its clock is wrong: set it right first", to)
		}
	}
	err := n.Transfer(ctx, id)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("no node has taken the leadership in time: look at the status, and at the nodes' logs")
	case errors.Is(err, consensus.ErrAlone):
		return fmt.Errorf("node %s keeps the leadership: %w; add nodes first", s.Name, err)
	}
	if err == nil && id != 0 {
		err = hasTaken(ctx, n, id, to)
	}
	return err
}

// hasTaken waits until a node that has given the leadership away knows the next leader, and fails if that is
// another one than was asked for. A node that does not take it, because its disk is full for example, is passed over.
func hasTaken(ctx context.Context, n *node.Node, id node.ID, name string) error {
	for {
		changed, s := n.Changes(), n.Status()
		if s.Leader == id {
			return nil
		}
		for _, m := range s.Members {
			if m.ID == s.Leader && m.ID != s.ID {
				return fmt.Errorf("node %s has taken the leadership, and not node %s, which did not take it in time: look at the lag of %s in the status, and at its log", m.Name, name, name)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.New("this node has given the leadership away, and knows no leader yet: look at the status")
		}
	}
}

func find(s *node.Status, name string) (node.Member, error) {
	var names []string
	for _, m := range s.Members {
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return node.Member{}, fmt.Errorf("the cluster has no node %s; it has %s", name, strings.Join(names, ", "))
}

// ErrNoLeader: no leader is known, so the leadership cannot be given away.
var ErrNoLeader = errors.New("no leader is known")

// Transfer gives the leadership to the node of this name or, if it is empty, to the one that is furthest,
// whichever node leads.
func (r *Reporter) Transfer(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	s := r.node.Status()
	switch {
	case s.Role == node.Leader:
		return give(ctx, r.node, to)
	case s.Leader == 0:
		return fmt.Errorf("%w: look at the status of the cluster", ErrNoLeader)
	}
	c, err := r.node.Dial(ctx, s.Leader, transferMagic)
	if err != nil {
		return fmt.Errorf("the leader: %w", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(transferTimeout))
	var a transferred
	if err = json.NewEncoder(c).Encode(transferRequest{to}); err == nil {
		err = json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&a)
	}
	switch {
	case err != nil:
		return fmt.Errorf("the leader: %w", err)
	case a.Error != "":
		return errors.New(a.Error)
	}
	return nil
}

// Named is the line of a node; false: the cluster has none of that name.
func (r *Report) Named(name string) (Line, bool) {
	for _, n := range r.Nodes {
		if n.Name == name {
			return n, true
		}
	}
	return Line{}, false
}

// Status asks all nodes at the same time. A node that the leader does not hear is waited for
// for 0.5 s, and if no leader answers each node for 1 s; all others for 2 s.
func (r *Reporter) Status(ctx context.Context) Report {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	own := r.node.Status()
	type numbered struct {
		i int
		answered
	}
	all, answers := make([]answered, len(own.Members)), make(chan numbered, len(own.Members))
	left := map[int]bool{}
	for i, m := range own.Members {
		all[i] = answered{member: m, err: errNoAnswer}
		if m.ID == own.ID {
			all[i] = answered{member: m, status: own, clock: clocks.Answer{Reading: clocks.Reading{Name: m.Name}}}
			continue
		}
		left[i] = true
		go func() {
			status, clock, err := askNode(ctx, r.node, m)
			answers <- numbered{i, answered{m, status, clock, err}}
		}()
	}
	for asked := time.Now(); len(left) > 0; {
		patience := time.NewTimer(time.Until(asked.Add(patienceFor(all, left))))
		select {
		case a := <-answers:
			all[a.i] = a.answered
			delete(left, a.i)
		case <-patience.C:
			return report(&own, all, r.spread)
		}
		patience.Stop()
	}
	return report(&own, all, r.spread)
}

var errNoAnswer = errors.New("it does not answer")

// patienceFor is how long the nodes that are left are waited for, from the question on.
func patienceFor(all []answered, left map[int]bool) time.Duration {
	leads := leaderOf(all)
	if leads == nil {
		return leaderlessTimeout
	}
	for i := range left {
		if m, err := find(leads, all[i].member.Name); err != nil || m.Active {
			return askTimeout
		}
	}
	return silentTimeout
}

// answered is what one node has answered.
type answered struct {
	member node.Member
	status node.Status
	clock  clocks.Answer // that of the node that the operator has asked has a name only
	err    error
}

// Ask asks the node that listens at an address for its status, for a program that is no node. ctx
// must have a deadline.
func Ask(ctx context.Context, dialer *port.Dialer, address string) (s node.Status, err error) {
	c, err := dialer.Dial(ctx, address, StatusMagic)
	if err != nil {
		return s, err
	}
	return readStatus(ctx, c)
}

func readStatus(ctx context.Context, c net.Conn) (s node.Status, err error) {
	defer c.Close()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	err = json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&s)
	if errors.Is(err, io.EOF) {
		err = errors.New("it closes the connection: it is still starting, is no node of a cluster, or one of the two has --cluster-cert and the other has not")
	}
	return s, settings.Explain(err)
}

// leaderOf is the leader of the highest term that has answered; nil: none has.
func leaderOf(all []answered) (leads *node.Status) {
	for i := range all {
		if s := &all[i].status; all[i].err == nil && s.Role == node.Leader && (leads == nil || s.Term > leads.Term) {
			leads = s
		}
	}
	return leads
}

// report puts the answers together. The leader of the highest term is the one: a former leader
// that is cut off does not know yet that it is none.
func report(own *node.Status, all []answered, spread time.Duration) Report {
	out := Report{Node: own.Name}
	leads := leaderOf(all)
	ahead, base := clocksAhead(all, spread)
	out.ClockBase = base
	for _, a := range all {
		line := Line{
			Name: a.member.Name, Address: a.member.Address, Role: a.status.Role, Term: a.status.Term,
			Received: a.status.Received, ReceiveBytes: a.status.ReceiveBytes, Learner: a.member.Learner, Level: a.status.Level, Admin: a.status.Admin,
			ClockAheadMs: ahead[a.member.Name].Milliseconds(), Unfit: a.status.Unfit,
		}
		out.Level = max(out.Level, a.status.InForce)
		if a.err != nil {
			line.Role, line.Error = Unreachable, a.err.Error()
			out.Missing = append(out.Missing, line.Name)
		}
		if leads != nil {
			if a.status.ID == leads.ID {
				out.Leader = line.Name
			} else if m, err := find(leads, line.Name); err == nil {
				line.Lag = m.Lag
			}
		}
		out.Nodes = append(out.Nodes, line)
	}
	sort.Slice(out.Nodes, func(i, j int) bool { return out.Nodes[i].Name < out.Nodes[j].Name })
	slices.Sort(out.Missing)
	voters, answer := out.votes()
	out.Quorum = answer > voters/2
	return out
}

// votes is how many nodes have a vote, which are all but learners, and how many of these answer.
func (r *Report) votes() (voters, answer int) {
	for _, n := range r.Nodes {
		if n.Learner {
			continue
		}
		voters++
		if n.Role != Unreachable {
			answer++
		}
	}
	return voters, answer
}

// Upgrade says which nodes keep the cluster at its format level; empty: none has a program that knows a
// higher one.
func (r *Report) Upgrade() string {
	newest, behind := 0, []string(nil)
	for _, n := range r.Nodes {
		newest = max(newest, n.Level)
	}
	for _, n := range r.Nodes {
		if n.Level < newest {
			behind = append(behind, n.Name)
		}
	}
	switch {
	case r.Level == 0 || newest <= r.Level:
		return ""
	case len(behind) == 0:
		return fmt.Sprintf("The cluster has format level %d, and goes to %d now.", r.Level, newest)
	}
	return fmt.Sprintf("The cluster has format level %d. It goes to %d when all nodes run a program that knows it; not yet: %s.", r.Level, newest, strings.Join(behind, ", "))
}

// Explain is what an operator should know besides the lines; empty: all is well.
func (r *Report) Explain() string {
	missing := strings.Join(r.Missing, ", ")
	voters, answer := r.votes()
	switch {
	case !r.Quorum:
		return fmt.Sprintf("no quorum: %d of %d nodes answer, and the cluster serves clients only with %d; missing: %s", answer, voters, voters/2+1, missing)
	case r.Leader == "":
		return "no leader at the moment; one is elected within seconds as long as a quorum of nodes reach each other"
	case len(r.Missing) > 0:
		return "missing: " + missing
	}
	return ""
}
