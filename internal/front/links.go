package front

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/fronts"
	"github.com/holdfast-mqtt/holdfast/internal/mux"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
)

const (
	askPause    = time.Second            // between two looks for the leader
	retryPause  = 100 * time.Millisecond // while there is none that takes clients
	otherPause  = 5 * time.Second        // while it does not speak what this program speaks: each attempt is a line in its log
	askTimeout  = 2 * time.Second
	slowPause   = 300 * time.Millisecond // for the other nodes when one has answered
	dialTimeout = 5 * time.Second
	maxNodes    = 32 // that are asked
	// leaderless is how long no node leads before the log says so, and saidPause how often it does.
	leaderless = 3 * time.Second
	saidPause  = time.Minute
)

// leader is a node that leads, as far as the front knows.
type leader struct {
	term    uint64
	address string // of its cluster port; empty: none is known
}

// links are those to the leader.
type links struct {
	front  *Front
	dialer *port.Dialer
	look   chan struct{} // capacity 1: a link has ended

	mu      sync.Mutex
	to      leader        // mu
	open    []*mux.Link   // mu
	leaving []*mux.Link   // mu: they carry the clients that they have, and no others
	next    int           // mu: in open
	changed chan struct{} // mu: closed when open changes
	nodes   []string      // the addresses that are asked; the goroutine of follow
	failing bool          // the log has that the leader cannot be reached; the goroutine of follow
	since   time.Time     // when no node led any more; zero: one does; the goroutine of follow
	said    time.Time     // when the log has said that; the goroutine of follow
}

func newLinks(f *Front) *links {
	l := &links{front: f, dialer: port.NewDialer(f.o.TLS, f.o.Logger), look: make(chan struct{}, 1), changed: make(chan struct{})}
	l.remember(nil)
	return l
}

// remember has the nodes asked that the front was given, and those that the leader's cluster has now.
func (l *links) remember(members []node.Member) {
	l.nodes = nil
	for _, p := range l.front.o.Peers {
		l.nodes = append(l.nodes, p.Address)
	}
	for _, m := range members {
		if m.Address != "" && !slices.Contains(l.nodes, m.Address) && len(l.nodes) < maxNodes {
			l.nodes = append(l.nodes, m.Address)
		}
	}
}

// pick gives a link, one after the other, as soon as there is one; nil: there was none until end,
// or the front ends.
func (l *links) pick(end time.Time) *mux.Link {
	var late <-chan time.Time
	for {
		l.mu.Lock()
		changed := l.changed
		if len(l.open) > 0 {
			l.next++
			link := l.open[l.next%len(l.open)]
			l.mu.Unlock()
			return link
		}
		l.mu.Unlock()
		if late == nil {
			timer := time.NewTimer(time.Until(end))
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-changed:
		case <-late:
			return nil
		case <-l.front.ending.Done():
			return nil
		}
	}
}

// figures are what is known of the leader, and how many links there are.
func (l *links) figures() (to leader, open int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to, len(l.open)
}

// follow looks for the leader until the front ends.
func (l *links) follow() {
	defer failstop.End(l.front.o.Logger, "the links to the leader")
	for l.front.ending.Err() == nil {
		to, why := l.ask()
		l.complain(to, why)
		select {
		case <-time.After(l.connect(to)):
		case <-l.look:
		case <-l.front.ending.Done():
		}
	}
	l.replace(leader{})
}

// complain logs why no node leads, as far as the front knows.
func (l *links) complain(to leader, why []string) {
	if _, open := l.figures(); to.address != "" || open > 0 {
		l.since, l.said = time.Time{}, time.Time{}
		return
	}
	now := time.Now()
	if l.since.IsZero() {
		l.since = now
	}
	if now.Sub(l.since) < leaderless || now.Sub(l.said) < saidPause || l.front.ending.Err() != nil {
		return
	}
	l.said = now
	l.front.o.Logger.Warn("no node of the cluster says which one leads: clients are refused", "for", now.Sub(l.since).Round(time.Second), "reason", strings.Join(why, "; "))
}

// ask asks all nodes which one leads. When one has answered, the others have slowPause. why is what each of them
// has answered instead of that.
func (l *links) ask() (newest leader, why []string) {
	ctx, cancel := context.WithTimeout(l.front.ending, askTimeout)
	defer cancel()
	type answer struct {
		from string
		*node.Status
		error
	}
	answers := make(chan answer, len(l.nodes))
	for _, address := range l.nodes {
		go func() {
			defer failstop.End(l.front.o.Logger, "a question to a node")
			s, err := control.Ask(ctx, l.dialer, address)
			if err != nil {
				l.front.o.Logger.Debug("a node does not answer", "address", address, "error", err)
				answers <- answer{address, nil, err}
				return
			}
			answers <- answer{address, &s, nil}
		}()
	}
	var members []node.Member
	var patience <-chan time.Time
collecting:
	for range l.nodes {
		var s answer
		select {
		case s = <-answers:
		case <-patience:
			break collecting
		}
		if s.error != nil {
			why = append(why, fmt.Sprintf("%s: %v", s.from, s.error))
			continue
		}
		if patience == nil {
			timer := time.NewTimer(slowPause)
			defer timer.Stop()
			patience = timer.C
		}
		address, known := s.LeaderAddress()
		if !known {
			why = append(why, s.from+": it knows no leader")
		} else if s.Term > newest.term || newest.address == "" {
			newest, members = leader{s.Term, address}, s.Members
		}
	}
	if newest.address != "" {
		l.remember(members)
	}
	return newest, why
}

// connect makes the links to a leader that are missing, and says when to look again.
func (l *links) connect(to leader) (pause time.Duration) {
	l.mu.Lock()
	had, open := l.to, len(l.open)
	l.mu.Unlock()
	if to.address == "" && open == 0 {
		return retryPause
	}
	if to.address == "" || to.term < had.term && open > 0 { // a node that was cut off
		return askPause
	}
	if to != had {
		l.replace(to)
	}
	for {
		l.mu.Lock()
		missing := l.front.o.Links - len(l.open)
		l.mu.Unlock()
		if missing <= 0 {
			return askPause
		}
		if err := l.add(to); err != nil {
			if l.front.ending.Err() == nil && !errors.Is(err, mux.ErrRefused) && !l.failing {
				l.failing = true
				l.front.o.Logger.Warn("cannot connect to the leader", "address", to.address, "error", err)
			}
			if errors.Is(err, mux.ErrVersion) {
				return otherPause
			}
			return retryPause
		}
		l.failing = false
	}
}

// add makes one link.
func (l *links) add(to leader) error {
	ctx, cancel := context.WithTimeout(l.front.ending, dialTimeout)
	defer cancel()
	conn, err := l.dialer.Dial(ctx, to.address, fronts.Magic)
	if err != nil {
		return err
	}
	version, err := mux.Own.Greet(conn)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	l.front.o.Logger.Debug("a link to the leader is open", "address", to.address, "version", version)
	var link *mux.Link
	made := make(chan struct{})
	link = mux.New(conn, mux.Options{
		MaxStreams: l.front.o.MaxConnections, Logger: l.front.o.Logger,
		Ended: func(err error) {
			<-made
			l.remove(link, to, err)
		},
		Left: func() {
			<-made
			l.leave(link)
		},
	})
	l.mu.Lock()
	l.open = append(l.open, link)
	l.announce()
	l.mu.Unlock()
	close(made)
	return nil
}

// announce wakes clients that wait for a link. Needs the lock.
func (l *links) announce() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// leave keeps new clients from a link: its server is about to end, and another node to lead.
func (l *links) leave(link *mux.Link) {
	l.mu.Lock()
	n := len(l.open)
	l.open = slices.DeleteFunc(l.open, func(other *mux.Link) bool { return other == link })
	if len(l.open) < n {
		l.leaving = append(l.leaving, link)
	}
	l.mu.Unlock()
	l.lookAgain()
}

func (l *links) lookAgain() {
	select {
	case l.look <- struct{}{}:
	default:
	}
}

// remove forgets a link that has ended.
func (l *links) remove(link *mux.Link, to leader, why error) {
	l.mu.Lock()
	n := len(l.open)
	l.open = slices.DeleteFunc(l.open, func(other *mux.Link) bool { return other == link })
	lost := len(l.open) < n
	l.leaving = slices.DeleteFunc(l.leaving, func(other *mux.Link) bool { return other == link })
	l.mu.Unlock()
	if !lost {
		return
	}
	l.front.o.Logger.Warn("a link to the leader has ended", "address", to.address, "reason", why)
	l.lookAgain()
}

// goodbye is how long a server that has lost its office may take to disconnect its clients. Its node
// may hear of that after the front.
const goodbye = time.Second

// replace gives up the links, as another node leads, or as the front ends.
func (l *links) replace(to leader) {
	l.mu.Lock()
	l.leaving = append(l.leaving, l.open...)
	l.open, l.to = nil, to
	former := slices.Clone(l.leaving)
	l.mu.Unlock()
	if to.address == "" {
		for _, link := range former {
			link.Close()
		}
		return
	}
	for _, link := range former {
		time.AfterFunc(goodbye, link.Close)
	}
	l.front.o.Logger.Info("a node leads", "address", to.address, "term", to.term)
}
