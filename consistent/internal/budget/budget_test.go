package budget

import (
	"context"
	"errors"
	"testing"
)

// What fits is counted once, and what is at the bound is counted again at most every ten
// seconds.
func TestBudget(t *testing.T) {
	t.Parallel()
	var b Budget
	of, counts := Bounds{Keys: 3, Bytes: 100}, 0
	count := func(context.Context) (int, int64, error) { counts++; return 1, 40, nil }
	reserve := func(size int64) error { return b.Reserve(t.Context(), of, size, count) }
	if err := reserve(60); err != nil { // to the byte
		t.Error(err)
	}
	if err := reserve(1); !errors.Is(err, ErrExceeded) {
		t.Errorf("a byte above the bound: %v", err)
	}
	b.GiveBack(60)
	for range 2 {
		if err := reserve(1); err != nil {
			t.Error(err)
		}
	}
	if err := reserve(1); !errors.Is(err, ErrExceeded) {
		t.Errorf("a key above the bound: %v", err)
	}
	if counts != 1 {
		t.Errorf("counted %d times, want once", counts)
	}
}

func TestBudgetThatCannotBeCounted(t *testing.T) {
	t.Parallel()
	var b Budget
	failed := errors.New("failed")
	if err := b.Reserve(t.Context(), Bounds{Keys: 3, Bytes: 100}, 1, func(context.Context) (int, int64, error) { return 0, 0, failed }); !errors.Is(err, failed) {
		t.Errorf("got %v, want the error of the count", err)
	}
}
