package store

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/history"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Watcher watches every key of the chapter. No crash may undo a change of which it was
// notified; settleBySightings checks that.
type Watcher struct {
	historian
	Chapter *Chapter
	seen    []history.Sighting
}

// NewWatcher makes a watcher of the keys of a chapter.
func NewWatcher(number int, rng *rand.Rand, c *Chapter) *Watcher {
	return &Watcher{historian: newHistorian(fmt.Sprintf("watcher%d", number), rng), Chapter: c}
}

// Live implements lives.Actor.
func (w *Watcher) Live(l *lives.Life) error {
	if l.Settle {
		return nil
	}
	s, err := w.dial(l)
	if err != nil {
		return w.ended(l, err)
	}
	l.Arrivals.Count()
	var fell error
	last := map[string]hlc.Timestamp{}
	s.event = func(e statestore.Event, version hlc.Timestamp) {
		key := string(e.Key)
		if version.Compare(last[key]) <= 0 {
			fell = fmt.Errorf("%w: %s was told of version %v of %q after %v", lives.ErrBroken, w.name, version, key, last[key])
		}
		last[key] = version
		w.seen = append(w.seen, history.Sighting{
			Key: key, Deleted: e.Kind == statestore.KeyDeleted, Value: string(e.Value), Version: version, At: lives.Now(),
		})
	}
	for _, key := range slices.Concat(w.Chapter.keys, w.Chapter.joint, w.Chapter.locks) {
		s.watch(key)
	}
	for {
		if err := s.Flush(); err != nil {
			return w.over(l, s, err)
		}
		if _, err := s.receive(); err != nil {
			return w.over(l, s, err)
		}
		if fell != nil {
			s.Close()
			return fell
		}
	}
}

// TakeSeen hands over what was seen since the last time.
func (w *Watcher) TakeSeen() []history.Sighting {
	seen := w.seen
	w.seen = nil
	return seen
}
