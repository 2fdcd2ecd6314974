package crashtest

import (
	"fmt"

	"holdfast/hlc"
	"holdfast/internal/mqtt"
	"holdfast/internal/statestore"
)

// archivist keeps keys for the whole run: what was acknowledged once is there,
// with its version, after any number of kills; what was deleted or has expired
// stays gone.
type archivist struct {
	historian
	kept  []kept
	gone  []string
	count int
}

type kept struct {
	key, value string
	version    hlc.Timestamp
}

// archived is how many keys of each kind the archivist looks after.
const archived = 100

func (a *archivist) live(l *life) error {
	s, err := dialStore(l, a.name, a.clock)
	if err != nil {
		return l.ended(a.name, err)
	}
	l.news.count()
	if err := a.review(l, s); err != nil {
		return a.close(l, s, err)
	}
	if l.settle {
		return s.goodbye(mqtt.Disconnect{})
	}
	for {
		if err := a.add(l, s); err != nil {
			return a.close(l, s, err)
		}
		if a.count%20 == 0 {
			// Enough for this life, and its size stays small.
			for err == nil {
				_, err = s.receive()
			}
			return a.close(l, s, err)
		}
	}
}

// close is over without a history: the archivist's keys are its own, and it has
// checked them itself.
func (a *archivist) close(l *life, s *storeLink, cause error) error {
	err := a.over(l, s, cause)
	a.take()
	return err
}

// review reads keys back: some in a usual life, all when the run settles.
func (a *archivist) review(l *life, s *storeLink) error {
	for _, k := range a.kept {
		if !l.settle && a.rng.IntN(8) > 0 {
			continue
		}
		got, err := a.ask(l, s, a.request(statestore.Get, k.key))
		if err != nil {
			return err
		}
		if got.kind != statestore.Value || got.value != k.value || got.version != k.version {
			return fmt.Errorf("%w: %q was acknowledged as %q with version %v; now it is %v", errBroken, k.key, k.value, k.version, got)
		}
	}
	for _, key := range a.gone {
		if !l.settle && a.rng.IntN(8) > 0 {
			continue
		}
		got, err := a.ask(l, s, a.request(statestore.Get, key))
		if err != nil {
			return err
		}
		if got.kind != statestore.Nil {
			return fmt.Errorf("%w: %q had gone, and is back: %v", errBroken, key, got)
		}
	}
	return nil
}

// add makes one more key: to keep, to delete, or to expire.
func (a *archivist) add(l *life, s *storeLink) error {
	a.count++
	r := a.request(statestore.Set, fmt.Sprintf("archive/%d", a.count))
	r.value = a.unique()
	way := a.count % 3 // in turn: on a busy machine there are few in a life, and one is to be kept
	if way == 1 {
		r.px = 1 // gone before anybody can look in the next life
	}
	got, err := a.ask(l, s, r)
	if err != nil {
		return err
	}
	if got.kind != statestore.OK {
		return fmt.Errorf("%w: %v got %v", errBroken, r, got)
	}
	switch way {
	case 0:
		a.kept = lastOf(append(a.kept, kept{r.key, r.value, got.version}))
		return nil
	case 2:
		if _, err := a.ask(l, s, a.request(statestore.Del, r.key)); err != nil {
			return err
		}
	}
	a.gone = lastOf(append(a.gone, r.key))
	return nil
}

func lastOf[T any](all []T) []T { return all[max(0, len(all)-archived):] }
