package members

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrRefused: a change of the members is refused. The reason is in the error.
var ErrRefused = errors.New("refused")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrRefused}, args...)...)
}

// Quorum is how many of so many voters a cluster needs.
func Quorum(voters int) int { return voters/2 + 1 }

// CheckNew says why no node of this name, or at this address, may be added; nil: one may be.
// answers says whether a member answers the leader, addressOf what the leader knows of
// addresses.
func (l *List) CheckNew(name, address string, answers func(ID) bool, addressOf func(Member) string) error {
	for _, m := range l.Members {
		switch {
		case m.Name == name:
			return refuse("the cluster has a node %s already: give the new one another name, or remove that one first", name)
		case addressOf(m) == address:
			return refuse("node %s has the address %s: each node listens on one of its own", m.Name, address)
		case m.Learner:
			return refuse("node %s is being added: add the next one when it is a follower, or remove it", m.Name)
		}
	}
	if len(l.Members) >= Max {
		return refuse("the cluster has %d nodes, and that is the most", Max)
	}
	return l.checkVoters(func(Member) bool { return true }, answers, 1, "adding node "+name)
}

// CheckPromotion says why a learner that has caught up may not get a vote yet.
func (l *List) CheckPromotion(answers func(ID) bool) error {
	return l.checkVoters(func(Member) bool { return true }, answers, 1, "another node with a vote")
}

// CheckRemoval says why a node may not be removed; nil: it may be.
func (l *List) CheckRemoval(name string, answers func(ID) bool) error {
	m, known := l.Named(name)
	if !known {
		return refuse("the cluster has no node %s; it has %s", name, strings.Join(l.Names(), ", "))
	}
	if m.Learner {
		return nil
	}
	if l.Voters() == 1 {
		return refuse("node %s is the only one", name)
	}
	if i := slices.IndexFunc(l.Members, func(o Member) bool { return o.Learner }); i >= 0 {
		return refuse("node %s is being added: wait until it is a follower, or remove it first", l.Members[i].Name)
	}
	return l.checkVoters(func(o Member) bool { return o.ID != m.ID }, answers, 0, "removing node "+name)
}

// checkVoters checks that those of the voters that stay, and more that are about to be, still have a
// quorum that answers.
func (l *List) checkVoters(stays func(Member) bool, answers func(ID) bool, more int, what string) error {
	voters, alive := more, more
	var missing []string
	for _, m := range l.Members {
		switch {
		case m.Learner || !stays(m):
		case answers(m.ID):
			voters++
			alive++
		default:
			voters++
			missing = append(missing, m.Name)
		}
	}
	if alive >= Quorum(voters) {
		return nil
	}
	return refuse("after %s, %d of %d nodes would have to answer, and %d do; missing: %s. Start these, or remove them, first", what, Quorum(voters), voters, alive, strings.Join(missing, ", "))
}
