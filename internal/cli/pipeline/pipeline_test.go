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
	err := Run(t.Context(), Window[int]{Items: window}, upTo(3*window, nil), nil, began, func(i int) error {
		got = append(got, i)
		return nil
	})
	if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

// While what is under way has as many bytes as the window, nothing further is begun; an item
// that is larger than the window is under way alone, or with those that were begun before it.
func TestTheWindowIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	sizes := []int{40, 59, 1, 7, 500, 1, 99, 1, 1} // bytes, in a window of 100
	underWay, most := 0, []int(nil)
	items := func(yield func(int, error) bool) {
		for _, size := range sizes {
			if !yield(size, nil) {
				return
			}
		}
	}
	// Given work that is done only when nothing further can begin,
	began := make(map[chan int]int)
	var order []chan int
	finish := func() {
		most = append(most, underWay)
		for _, c := range order {
			underWay -= began[c]
			c <- began[c]
		}
		order = nil
	}
	left := len(sizes)
	begin := func(size int) (<-chan int, error) {
		if underWay >= 100 {
			t.Errorf("an item of %d bytes begins while %d are under way", size, underWay)
		}
		c := make(chan int, 1)
		began[c], order = size, append(order, c)
		underWay += size
		if left--; underWay >= 100 || left == 0 {
			finish()
		}
		return c, nil
	}
	// when it is run,
	var got []int
	err := Run(t.Context(), Window[int]{Items: len(sizes), Bytes: 100, SizeBytes: func(size int) int { return size }}, items, nil, begin, func(size int) error {
		got = append(got, size)
		return nil
	})
	// then exactly 100 bytes fill the window, and so does what passes it.
	if want := []int{100, 507, 100, 2}; err != nil || !slices.Equal(got, sizes) || !slices.Equal(most, want) {
		t.Errorf("got %v, %v, with %v bytes under way; want %v", got, err, most, want)
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
		if err := Run(test.ctx, Window[int]{Items: 3}, test.items, test.broken, test.begin, test.report); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}
