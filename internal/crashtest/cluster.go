package crashtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/messages"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
)

// Fault is what happens to a cluster in one life, while clients work.
type Fault string

// The faults. After each of them another node leads, or the same one again in a later term;
// dead nodes are started again before or after that.
const (
	KillLeader    Fault = "leader"      // SIGKILL
	KillFollower  Fault = "follower"    // a follower, which may come back, and then the leader
	KillTwo       Fault = "two"         // the leader and a follower at once, or both followers
	KillAll       Fault = "all"         // at once
	KillNext      Fault = "next"        // the leader, and then the node that leads or is about to
	PauseLeader   Fault = "pause"       // SIGSTOP until another node leads, and for a while after that
	Transfer      Fault = "transfer"    // holdfast cluster transfer
	KillCutLeader Fault = "without-ack" // the leader, while both followers are paused: it has what only its disk has
)

var allFaults = []Fault{KillLeader, KillLeader, KillLeader, KillFollower, KillTwo, KillAll, KillNext, PauseLeader, Transfer, KillCutLeader}

// FaultNames are the names of all faults, with commas; with cuts, those of a cluster whose links can be cut.
func FaultNames(cuts bool) string {
	all := allFaults
	if cuts {
		all = cutFaults
	}
	var names []string
	for _, f := range all {
		if !slices.Contains(names, string(f)) {
			names = append(names, string(f))
		}
	}
	return strings.Join(names, ",")
}

// ParseFaults reads names of faults, with commas.
func ParseFaults(names string) (faults []Fault, err error) {
	for name := range strings.SplitSeq(names, ",") {
		if !slices.Contains(allFaults, Fault(name)) && !isCut(Fault(name)) {
			return nil, fmt.Errorf("no fault is called %q: choose of %s, or with partitions of %s", name, FaultNames(false), FaultNames(true))
		}
		faults = append(faults, Fault(name))
	}
	return faults, nil
}

// ClusterCounts counts what happened to a cluster.
type ClusterCounts struct {
	Leaders   int           `json:"leaders_killed"`
	Followers int           `json:"followers_killed"`
	Starting  int           `json:"killed_while_starting"`
	Paused    int           `json:"leaders_paused"`
	Cut       int           `json:"followers_paused"` // both at once
	Transfers int           `json:"transfers"`
	Cuts      int           `json:"cuts"`
	Upgraded  int           `json:"nodes_upgraded"`
	Added     int           `json:"nodes_added"`
	Removed   int           `json:"nodes_removed"`
	Unasked   int           `json:"connections_lost_without_a_fault"` // lives that ended so: on a busy machine nodes elect a leader by themselves
	ByFault   map[Fault]int `json:"lives_by_fault"`
	// MedianGap and LongestGap are how long it took from the death of a leader, or from when it was cut off,
	// with both others alive, until a write of each of them was acknowledged.
	MedianGap  time.Duration `json:"median_gap"`
	LongestGap time.Duration `json:"longest_gap"`

	gaps []time.Duration
}

func (c *ClusterCounts) String() string {
	var also strings.Builder
	if c.Cuts > 0 {
		fmt.Fprintf(&also, "%d partitions (", c.Cuts)
		for _, f := range c.byFault() {
			fmt.Fprintf(&also, " %s %d", f, c.ByFault[f])
		}
		also.WriteString(" ), ")
	}
	if c.Upgraded+c.Added+c.Removed > 0 {
		fmt.Fprintf(&also, "%d nodes upgraded, %d added, %d removed, ", c.Upgraded, c.Added, c.Removed)
	}
	return fmt.Sprintf("%s%d leaders and %d followers killed, %d nodes while starting, %d leaders and %d pairs of followers paused, %d transfers, %d lives that ended by an election without a fault; from a leader's end to the next write %v (median), %v (longest)",
		also.String(), c.Leaders, c.Followers, c.Starting, c.Paused, c.Cut, c.Transfers, c.Unasked, c.MedianGap.Round(time.Millisecond), c.LongestGap.Round(time.Millisecond))
}

func (c *ClusterCounts) gap(d time.Duration) {
	c.gaps = append(c.gaps, d)
	slices.Sort(c.gaps)
	c.MedianGap, c.LongestGap = c.gaps[len(c.gaps)/2], c.gaps[len(c.gaps)-1]
}

// act is a life of the cluster that is under way.
type act struct {
	*run
	ctx    context.Context
	life   *lives.Life
	before nodes.View // at its beginning
	killed time.Time  // when the leader was killed; zero: it was not, or not alone
	late   bool       // dead nodes are started when another node leads
}

// clusterRound is a life with a fault.
func (r *run) clusterRound(ctx context.Context) error {
	faults := r.faultsOf()
	f := faults[r.rng.IntN(len(faults))]
	acks, arrivals := 1+r.rng.Int64N(1<<(4+r.rng.IntN(maxWorkBits-3))), int64(never)
	if r.rng.IntN(8) == 0 { // while clients resume
		acks, arrivals = 1+r.rng.Int64N(maxArrivals), 1+r.rng.Int64N(maxArrivals)
	}
	_, err := r.liveCluster(ctx, false, f, acks, arrivals)
	return err
}

// maxSettling bounds the lives that a settlement takes, of which an election that the run has
// not caused ends all but the last.
const maxSettling = 20

func (r *run) settleCluster(ctx context.Context) error {
	for range maxSettling {
		done, err := r.liveCluster(ctx, true, KillLeader, never, never)
		if err != nil || done {
			return err
		}
	}
	return fmt.Errorf("the cluster elects leaders all the time; the nodes said\n%s", r.Cluster.Output())
}

// liveCluster is one life. done is false if it has ended before the run ended it.
func (r *run) liveCluster(ctx context.Context, settle bool, f Fault, acks, arrivals int64) (done bool, err error) {
	a := &act{run: r, ctx: ctx}
	if err := a.begin(); err != nil {
		return false, err
	}
	l := r.beginLife(settle, acks, arrivals)
	l.Doors = lives.NewEntrances(r.actorRand())
	for _, n := range r.Cluster.Nodes() {
		l.Doors.Open(n.Name, n.Dial)
	}
	a.life = l
	var faults []messages.Faults
	for _, s := range r.subs {
		faults = append(faults, s.Faults)
	}
	actors := &sync.WaitGroup{}
	if r.checkRetained(l) == nil {
		actors = r.startActors(l)
		done = a.await(actors)
	}
	if done {
		if r.sum.Cluster.ByFault == nil {
			r.sum.Cluster.ByFault = map[Fault]int{}
		}
		r.sum.Cluster.ByFault[f]++
		err = a.apply(f)
	} else {
		r.sum.Cluster.Unasked++
	}
	if err == nil {
		err = a.finish()
	}
	l.Doors.Drop()
	l.DiedAt.Store(lives.Now())
	close(l.Dead)
	actors.Wait()
	if !done {
		for i, s := range r.subs {
			s.Pardon(faults[i])
		}
	}
	return done, err
}

// begin has all nodes run, and a leader serve clients of each of them.
func (a *act) begin() (err error) {
	if err = a.start(a.Cluster.Dead()...); err == nil {
		a.before, err = a.serving(0)
	}
	return err
}

// serving waits until clients of every node that works are served in a term after one.
func (a *act) serving(after uint64) (v nodes.View, err error) {
	ctx, cancel := context.WithTimeout(a.ctx, a.Patience)
	defer cancel()
	if v, err = a.Cluster.AwaitLeader(ctx, after); err != nil {
		return v, err
	}
	for _, n := range a.Cluster.Working() {
		if err := n.Probe(ctx); err != nil {
			return v, err
		}
	}
	return v, nil
}

// start starts nodes. Some of them are killed while they start, and started again.
func (a *act) start(dead ...*nodes.Node) error {
	for _, n := range dead {
		if a.startup == 0 || a.rng.IntN(8) > 0 {
			continue
		}
		if err := n.Launch(); err != nil {
			return err
		}
		a.wait(a.startup)
		a.end(n)
		a.sum.Cluster.Starting++
	}
	began := time.Now()
	if err := a.Cluster.Start(dead...); err != nil {
		return err
	}
	if len(dead) > 0 && len(dead) < len(a.Cluster.Nodes()) {
		a.startup = time.Since(began)
	}
	return nil
}

// wait waits for a random time up to most, so that faults meet the cluster in all states.
func (a *act) wait(most time.Duration) {
	moment := time.NewTimer(time.Duration(a.rng.Int64N(int64(most) + 1)))
	defer moment.Stop()
	select {
	case <-moment.C:
	case <-a.ctx.Done():
	}
}

// end kills nodes.
func (a *act) end(all ...*nodes.Node) {
	for _, name := range a.Cluster.Kill(all...) {
		a.violate("life %d: node %s ended by itself; the nodes said\n%s", a.lives, name, a.Cluster.Output())
	}
}

// await returns when it is time for the fault: true, or when a connection has ended that the run has
// not ended: false.
func (a *act) await(actors *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() {
		actors.Wait()
		close(done)
	}()
	late := time.NewTimer(a.Patience)
	defer late.Stop()
	select {
	case <-done:
	case <-a.life.Acks.Fired:
		a.wait(3 * time.Millisecond)
	case <-a.life.Arrivals.Fired:
		a.wait(3 * time.Millisecond)
	case <-a.life.Doors.Unasked:
		return false
	case <-late.C:
		a.violate("life %d: the actors were not done after %v (settling: %v); the nodes said\n%s", a.lives, a.Patience, a.life.Settle, a.Cluster.Output())
	case <-a.ctx.Done():
	}
	return true
}

// How long, at most, what a fault consists of takes.
const (
	maxAbsence = 400 * time.Millisecond // of a follower before the leader is killed
	maxQuorum  = 2 * time.Second        // that the cluster is without a quorum
	maxElected = 2 * time.Second        // from the death of a leader to that of the next
	maxCut     = 800 * time.Millisecond // that a leader has paused followers
)

// apply has a fault happen.
func (a *act) apply(f Fault) error {
	v := a.Cluster.Look(a.ctx)
	if v.Leader == nil {
		a.life.Doors.Move("")
		return nil
	}
	a.before = v
	a.late = a.rng.IntN(2) == 0
	leader, counts, doors := v.Leader, a.sum.Cluster, a.life.Doors
	follower := a.Cluster.Other(leader, a.rng.IntN)
	if isCut(f) {
		return a.cutLinks(f, leader, follower)
	}
	switch f {
	case Upgrade:
		return a.upgrade(leader)
	case Resize:
		return a.resize()
	case KillFollower:
		doors.Fell(follower.Name)
		a.end(follower)
		counts.Followers++
		a.wait(maxAbsence)
		if a.rng.IntN(2) == 0 {
			if err := a.start(follower); err != nil {
				return err
			}
			doors.Open(follower.Name, follower.Dial)
			a.wait(maxAbsence)
		}
		a.kill(leader)
	case KillTwo:
		if a.rng.IntN(2) == 0 {
			a.kill(leader, follower)
			counts.Followers++
			break
		}
		followers := a.others(leader)
		for _, n := range followers {
			doors.Move(n.Name)
		}
		a.end(followers...)
		counts.Followers += len(followers)
		a.wait(maxQuorum)
	case KillAll:
		a.kill(a.Cluster.Nodes()...)
		counts.Followers += len(a.Cluster.Nodes()) - 1
	case KillNext:
		a.kill(leader)
		a.wait(maxElected)
		next := a.Cluster.Look(a.ctx).Leader
		if next == nil {
			next = follower
		}
		a.kill(next)
	case PauseLeader:
		return a.pause(leader)
	case Transfer:
		doors.Move("")
		counts.Transfers++
		if err := a.Cluster.Transfer(a.ctx, follower); err != nil {
			a.Log("life %d: transfer to node %s: %v", a.lives, follower.Name, err)
		}
	case KillCutLeader:
		a.cut(leader)
	default:
		a.kill(leader)
		a.killed = time.Now()
	}
	return nil
}

func (a *act) others(leader *nodes.Node) (others []*nodes.Node) {
	for _, n := range a.Cluster.Working() {
		if n != leader {
			others = append(others, n)
		}
	}
	return others
}

// kill kills the leader, and other nodes at the same time.
func (a *act) kill(all ...*nodes.Node) {
	for _, n := range all {
		a.life.Doors.Move(n.Name)
	}
	a.end(all...)
	a.sum.Cluster.Leaders++
}

// pause pauses the leader until another node leads and clients have written there, and lets it go
// on: with requests that came before, and with memory that is old.
func (a *act) pause(leader *nodes.Node) error {
	a.life.Doors.Move(leader.Name)
	leader.Pause()
	defer leader.Continue()
	a.sum.Cluster.Paused++
	ctx, cancel := context.WithTimeout(a.ctx, a.Patience)
	defer cancel()
	if _, err := a.Cluster.AwaitLeader(ctx, a.before.Term); err != nil {
		return err
	}
	a.wait(maxAbsence)
	leader.Continue()
	a.wait(maxAbsence)
	return nil
}

// cut kills the leader while both followers are paused. What it had committed before is with
// them; what has come since is not, and must not have been acknowledged.
func (a *act) cut(leader *nodes.Node) {
	for _, n := range a.others(leader) {
		n.Pause()
		defer n.Continue()
	}
	a.sum.Cluster.Cut++
	a.late = true // or it could lead again, with all that only its disk has
	a.wait(maxCut)
	a.kill(leader)
}

// finish ends a life: a leader serves that was elected after all connections had ended.
func (a *act) finish() error {
	a.life.Doors.Close()
	dead := a.Cluster.Dead()
	quorum := len(a.Cluster.Nodes())/2 + 1
	if !a.late || len(a.Cluster.Nodes())-len(dead) < quorum {
		if err := a.start(dead...); err != nil {
			return err
		}
	}
	term := max(a.before.Term, a.Cluster.Look(a.ctx).Term)
	if err := a.replaceLeader(term); err != nil {
		return err
	}
	a.awaitCut()
	if _, err := a.serving(term); err != nil {
		return err
	}
	if !a.killed.IsZero() {
		a.sum.Cluster.gap(time.Since(a.killed))
	}
	return a.start(a.Cluster.Dead()...)
}

// replaceLeader waits until a node leads in a term after one, and has the leadership
// transferred if the leader is none.
func (a *act) replaceLeader(term uint64) error {
	ctx, cancel := context.WithTimeout(a.ctx, a.Patience)
	defer cancel()
	for ctx.Err() == nil {
		v := a.Cluster.Look(ctx)
		switch {
		case v.Leader != nil && v.Term > term:
			return nil
		case v.Leader != nil:
			if to := a.Cluster.Other(v.Leader, a.rng.IntN); to != nil {
				_ = a.Cluster.Transfer(ctx, to) // the next look shows it
			}
		}
		a.wait(20 * time.Millisecond)
	}
	return fmt.Errorf("no node leads in a term after %d: %w; the nodes said\n%s", term, ctx.Err(), a.Cluster.Output())
}

// awaitCut waits until the nodes have closed all connections that a former leader has served.
func (a *act) awaitCut() {
	for end := time.Now().Add(a.Patience); ; a.wait(5 * time.Millisecond) {
		left, through := a.life.Doors.Left()
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			a.violate("life %d: %v after another node was elected, connections of clients of the former leader are open, through %v; the nodes said\n%s", a.lives, a.Patience, through, a.Cluster.Output())
			return
		}
	}
}
