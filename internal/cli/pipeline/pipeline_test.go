package pipeline

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"
)

// upTo gives the numbers from 0 up, and then an error if there is one.
func upTo(n int, err error) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for i := range n {
			if !yield(i, nil) {
				return
			}
		}
		if err != nil {
			yield(0, err)
		}
	}
}

// Outcomes are reported in the order of the items, whichever is there first, and no more
// than a window of items is under way.
func TestOutcomesComeInOrder(t *testing.T) {
	t.Parallel()
	const window = 4
	var begun []chan int // given an outcome by the test, the newest first
	began := func(i int) (<-chan int, error) {
		c := make(chan int, 1)
		begun = append(begun, c)
		if len(begun) == window { // the window is full: answer it backwards
			for j := len(begun) - 1; j >= 0; j-- {
				begun[j] <- i - (window - 1) + j
			}
			begun = nil
		}
		return c, nil
	}
	var got []int
	err := Run(t.Context(), window, upTo(3*window, nil), nil, began, func(i int) error {
		got = append(got, i)
		return nil
	})
	if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

// After an error, wherever it comes from, what is under way is awaited, and the first
// error is returned.
func TestTheFirstErrorEndsIt(t *testing.T) {
	t.Parallel()
	failure := errors.New("failure")
	done := func(i int) (<-chan int, error) {
		c := make(chan int, 1)
		c <- i
		return c, nil
	}
	broken := make(chan error, 1)
	broken <- failure
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	never := func(func(int, error) bool) { <-t.Context().Done() }
	for name, test := range map[string]struct {
		ctx    context.Context
		items  iter.Seq2[int, error]
		broken <-chan error
		begin  func(int) (<-chan int, error)
		report func(int) error
		want   error
	}{
		"none":          {t.Context(), upTo(10, nil), nil, done, func(int) error { return nil }, nil},
		"of the items":  {t.Context(), upTo(10, failure), nil, done, func(int) error { return nil }, failure},
		"of begin":      {t.Context(), upTo(10, nil), nil, func(int) (<-chan int, error) { return nil, failure }, func(int) error { return nil }, failure},
		"of report":     {t.Context(), upTo(10, nil), nil, done, func(int) error { return failure }, failure},
		"of the others": {t.Context(), never, broken, done, func(int) error { return nil }, failure},
		"interrupted":   {interrupted, never, nil, done, func(int) error { return nil }, ErrInterrupted},
	} {
		if err := Run(test.ctx, 3, test.items, test.broken, test.begin, test.report); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}
