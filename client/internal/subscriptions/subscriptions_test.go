package subscriptions

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

var (
	errRefused = errors.New("refused")
	errLost    = errors.New("the answer was lost")
)

// server is what a server has for one session. Filters that begin with "no" are refused.
// While lost is true it carries requests out, and its answers are lost.
type server struct {
	has  map[string]bool
	lost bool
}

func (s *server) Subscribe(_ context.Context, filter string) error {
	if strings.HasPrefix(filter, "no") {
		return errRefused
	}
	s.has[filter] = true
	return s.answer()
}

func (s *server) Unsubscribe(_ context.Context, filter string) error {
	delete(s.has, filter)
	return s.answer()
}

func (s *server) answer() error {
	if s.lost {
		return errLost
	}
	return nil
}

func (s *server) want(t *testing.T, when string, filters ...string) {
	t.Helper()
	if got := slices.Sorted(maps.Keys(s.has)); !slices.Equal(got, filters) {
		t.Errorf("%s the server has %q, want %q", when, got, filters)
	}
}

func newList() (*List, *server) {
	return NewList(func(err error) bool { return errors.Is(err, errRefused) }), &server{has: map[string]bool{}}
}

// Of a call with a filter that the server refuses, no filter is subscribed to.
func TestARefusedFilterTakesTheOthersBack(t *testing.T) {
	t.Parallel()
	l, s := newList()
	if err := l.Add(t.Context(), s, []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Add(t.Context(), s, []string{"a", "b", "no"}); !errors.Is(err, errRefused) {
		t.Errorf("got %v, want a refusal", err)
	}
	s.want(t, "after the refusal", "a")
}

// A filter whose SUBACK was lost is unsubscribed from on the next connection.
func TestASubscriptionWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	l, s := newList()
	s.lost = true
	if err := l.Add(t.Context(), s, []string{"a"}); !errors.Is(err, errLost) {
		t.Fatalf("got %v, want the lost answer", err)
	}
	s.want(t, "before the next connection", "a")
	s.lost = false
	if err := l.Restore(t.Context(), s, true); err != nil {
		t.Error(err)
	}
	s.want(t, "on the next connection")
}

// A call that is repeated after a lost answer makes the subscription.
func TestASubscriptionThatIsRepeated(t *testing.T) {
	t.Parallel()
	l, s := newList()
	s.lost = true
	_ = l.Add(t.Context(), s, []string{"a"})
	s.lost = false
	if err := l.Add(t.Context(), s, []string{"a"}); err != nil {
		t.Error(err)
	}
	if err := l.Restore(t.Context(), s, true); err != nil {
		t.Error(err)
	}
	s.want(t, "after the repeated call", "a")
}

// A server that has forgotten the session gets the subscriptions again, but not those
// that were ended.
func TestAForgottenSession(t *testing.T) {
	t.Parallel()
	l, s := newList()
	if err := l.Add(t.Context(), s, []string{"a", "b", "c"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(t.Context(), s, []string{"b"}); err != nil {
		t.Fatal(err)
	}
	clear(s.has)
	if err := l.Restore(t.Context(), s, false); err != nil {
		t.Error(err)
	}
	s.want(t, "on the next connection", "a", "c")
}
