package store

import (
	"fmt"
	"math/rand/v2"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Archivist keeps keys for the whole run. A key whose SET was acknowledged must be there,
// with its version, after any number of kills; a key that was deleted or has expired must
// not come back.
type Archivist struct {
	historian
	kept  []kept
	gone  []string
	Count int
}

type kept struct {
	key, value string
	version    hlc.Timestamp
}

// NewArchivist makes an archivist.
func NewArchivist(rng *rand.Rand) *Archivist {
	return &Archivist{historian: newHistorian("archivist", rng)}
}

// archived is how many keys of each kind the archivist looks after.
const archived = 100

// Live implements lives.Actor.
func (a *Archivist) Live(l *lives.Life) error {
	s, err := a.dial(l)
	if err != nil {
		return a.ended(l, err)
	}
	l.Arrivals.Count()
	if err := a.review(l, s); err != nil {
		return a.close(l, s, err)
	}
	if l.Settle {
		return s.Disconnect(mqtt.Disconnect{})
	}
	for {
		if err := a.add(l, s); err != nil {
			return a.close(l, s, err)
		}
		if a.Count%20 == 0 {
			// These are enough for one life. Wait for its end.
			for err == nil {
				_, err = s.receive()
			}
			return a.close(l, s, err)
		}
	}
}

// close is over, without keeping the requests for the check of histories: only the
// archivist uses its keys, and it has checked the answers itself.
func (a *Archivist) close(l *lives.Life, s *storeLink, cause error) error {
	err := a.over(l, s, cause)
	a.Take()
	return err
}

// review reads keys back: some in a usual life, all when the run settles.
func (a *Archivist) review(l *lives.Life, s *storeLink) error {
	for _, k := range a.kept {
		if !l.Settle && a.rng.IntN(8) > 0 {
			continue
		}
		got, err := a.ask(l, s, a.request(statestore.Get, k.key))
		if err != nil {
			return err
		}
		if got.Kind != statestore.Value || got.Value != k.value || got.Version != k.version {
			return fmt.Errorf("%w: %q was acknowledged as %q with version %v; now it is %v", lives.ErrBroken, k.key, k.value, k.version, got)
		}
	}
	for _, key := range a.gone {
		if !l.Settle && a.rng.IntN(8) > 0 {
			continue
		}
		got, err := a.ask(l, s, a.request(statestore.Get, key))
		if err != nil {
			return err
		}
		if got.Kind != statestore.Nil {
			return fmt.Errorf("%w: %q had gone, and is back: %v", lives.ErrBroken, key, got)
		}
	}
	return nil
}

// add makes one more key: to keep, to delete, or to expire.
func (a *Archivist) add(l *lives.Life, s *storeLink) error {
	a.Count++
	r := a.request(statestore.Set, fmt.Sprintf("archive/%d", a.Count))
	r.Value = a.unique()
	way := a.Count % 3 // in turn, so that of few keys in a life at least one is kept
	if way == 1 {
		r.PX = 1 // it expires before the next life begins
	}
	got, err := a.ask(l, s, r)
	if err != nil {
		return err
	}
	if got.Kind != statestore.OK {
		return fmt.Errorf("%w: %v got %v", lives.ErrBroken, r, got)
	}
	switch way {
	case 0:
		a.kept = lastOf(append(a.kept, kept{r.Key, r.Value, got.Version}))
		return nil
	case 2:
		if _, err := a.ask(l, s, a.request(statestore.Del, r.Key)); err != nil {
			return err
		}
	}
	a.gone = lastOf(append(a.gone, r.Key))
	return nil
}

func lastOf[T any](all []T) []T { return all[max(0, len(all)-archived):] }
