package crashtest

import (
	"fmt"
	"slices"

	"holdfast/hlc"
	"holdfast/internal/statestore"
)

// watcher watches every key of the chapter. What it is told was done, and can't
// be undone by a crash; settleBySightings sees to that.
type watcher struct {
	historian
	chapter *chapter
	seen    []sighting
}

func (w *watcher) live(l *life) error {
	if l.settle {
		return nil
	}
	s, err := dialStore(l, w.name, w.clock)
	if err != nil {
		return l.ended(w.name, err)
	}
	l.news.count()
	var fell error
	last := map[string]hlc.Timestamp{}
	s.event = func(e statestore.Event, version hlc.Timestamp) {
		key := string(e.Key)
		if version.Compare(last[key]) <= 0 {
			fell = fmt.Errorf("%w: %s was told of version %v of %q after %v", errBroken, w.name, version, key, last[key])
		}
		last[key] = version
		w.seen = append(w.seen, sighting{
			key: key, deleted: e.Kind == statestore.KeyDeleted, value: string(e.Value), version: version, at: now(),
		})
	}
	for _, key := range slices.Concat(w.chapter.keys, w.chapter.locks) {
		s.watch(key)
	}
	for {
		if err := s.flush(); err != nil {
			return w.over(l, s, err)
		}
		if _, err := s.receive(); err != nil {
			return w.over(l, s, err)
		}
		if fell != nil {
			s.close()
			return fell
		}
	}
}

// takeSeen hands over what was seen since the last time.
func (w *watcher) takeSeen() []sighting {
	seen := w.seen
	w.seen = nil
	return seen
}
