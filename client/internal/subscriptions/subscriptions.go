// Package subscriptions keeps the subscriptions that a session has at the server in step
// with those that the application asked for.
package subscriptions

import (
	"context"
	"fmt"
	"slices"
)

// List is the subscriptions of one session.
//
// What the server has is not always known: a SUBSCRIBE or UNSUBSCRIBE whose answer was
// lost may have been carried out, and a server can forget a session. So there are two
// lists. A filter is wanted from the moment when the server has granted it, and stale
// while the server may have it although it should not. The next call, or the next
// connection, unsubscribes from the stale ones.
type List struct {
	refused func(error) bool // tells the server's refusal from a lost answer

	// changing has an element while a goroutine talks to the server about
	// subscriptions. It guards the rest.
	changing chan struct{}
	wanted   []subscription
	stale    []string
}

type subscription struct {
	filter  string
	granted bool // the server has it, in this session
}

// Link is the session's connection.
type Link interface {
	Subscribe(ctx context.Context, filter string) error
	Unsubscribe(ctx context.Context, filter string) error
}

// NewList makes an empty list. refused says whether an error of a link is the server's
// refusal; after any other the server may have carried the request out.
func NewList(refused func(error) bool) *List {
	return &List{refused: refused, changing: make(chan struct{}, 1)}
}

func (s *List) lock(ctx context.Context) error {
	select {
	case s.changing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *List) unlock() { <-s.changing }

// Add subscribes to all of the filters, or to none if the server refuses one.
func (s *List) Add(ctx context.Context, l Link, filters []string) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	for _, filter := range filters {
		fresh := s.find(filter) < 0
		if fresh {
			s.doubt(filter)
		}
		if err := l.Subscribe(ctx, filter); err != nil {
			if s.refused(err) {
				if fresh {
					s.trust(filter) // the server does not have it
				}
				_ = s.clean(ctx, l) // unsubscribes from the others
			}
			return fmt.Errorf("%s: %w", filter, err)
		}
	}
	for _, filter := range filters {
		s.trust(filter)
		if s.find(filter) < 0 {
			s.wanted = append(s.wanted, subscription{filter, true})
		}
	}
	_ = s.clean(ctx, l) // of earlier calls; what fails stays stale
	return nil
}

// Remove unsubscribes from the filters.
func (s *List) Remove(ctx context.Context, l Link, filters []string) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	for _, filter := range filters {
		if i := s.find(filter); i >= 0 {
			s.wanted = slices.Delete(s.wanted, i, i+1)
		}
		s.doubt(filter)
	}
	return s.clean(ctx, l)
}

// Restore is for a new connection; present says whether the server has kept the session.
func (s *List) Restore(ctx context.Context, l Link, present bool) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	if !present {
		s.stale = nil
		for i := range s.wanted {
			s.wanted[i].granted = false
		}
	}
	for i := range s.wanted {
		if s.wanted[i].granted {
			continue
		}
		if err := l.Subscribe(ctx, s.wanted[i].filter); err != nil {
			return fmt.Errorf("subscribe: %s: %w", s.wanted[i].filter, err)
		}
		s.wanted[i].granted = true
	}
	if err := s.clean(ctx, l); err != nil {
		return fmt.Errorf("unsubscribe: %w", err)
	}
	return nil
}

// clean unsubscribes from the stale filters. If the server refuses, the filter is wanted
// again, because its messages still come.
func (s *List) clean(ctx context.Context, l Link) error {
	var refused error
	for len(s.stale) > 0 {
		filter := s.stale[0]
		err := l.Unsubscribe(ctx, filter)
		switch {
		case s.refused(err):
			s.wanted = append(s.wanted, subscription{filter, true})
			refused = fmt.Errorf("%s: %w", filter, err)
		case err != nil:
			return fmt.Errorf("%s: %w", filter, err)
		}
		s.stale = s.stale[1:]
	}
	return refused
}

func (s *List) find(filter string) int {
	return slices.IndexFunc(s.wanted, func(w subscription) bool { return w.filter == filter })
}

// doubt notes that the server may have a filter that is not wanted.
func (s *List) doubt(filter string) {
	if !slices.Contains(s.stale, filter) {
		s.stale = append(s.stale, filter)
	}
}

func (s *List) trust(filter string) {
	s.stale = slices.DeleteFunc(s.stale, func(f string) bool { return f == filter })
}
