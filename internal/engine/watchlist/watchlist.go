// Package watchlist keeps the watchers of one key, so that a change of the key can keep them
// as they were without a copy.
package watchlist

import "github.com/holdfast-mqtt/holdfast/internal/journal"

// Element is what a List holds: it has room for its place in the list, which is the List's
// to use.
type Element interface {
	comparable
	Place() *int
}

// List has the watchers of one key. The caller locks it.
//
// A change keeps the list as it was, until it is durable, without a copy: a key
// may have 100,000 watchers and change often. So elements that a change can see
// are never written again: adding appends behind them, and removing copies the
// list first, but only if a change that still sees it is not complete.
type List[E Element] struct {
	All    []E
	Shared journal.Seq // the newest change that sees the list
}

// Add adds w, which is in no list.
func (l *List[E]) Add(w E) {
	*w.Place() = len(l.All)
	l.All = append(l.All, w)
}

// Remove takes w out; complete is the journal's.
func (l *List[E]) Remove(w E, complete journal.Seq) {
	if l.Shared > complete {
		l.All = append(make([]E, 0, len(l.All)), l.All...)
		l.Shared = 0
	}
	var none E
	last := len(l.All) - 1
	moved := l.All[last]
	l.All[*w.Place()] = moved
	*moved.Place() = *w.Place()
	l.All[last] = none
	l.All = l.All[:last]
}
