package claim

import (
	"errors"
	"testing"
)

func TestClaim(t *testing.T) {
	t.Parallel()
	first, second := new(int), new(int)
	release, err := Of(first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Of(second); err != nil {
		t.Errorf("another connection: %v", err)
	}
	if _, err := Of(first); !errors.Is(err, ErrTaken) {
		t.Errorf("the same connection: %v", err)
	}
	if _, err := Of(nil); err == nil {
		t.Error("nil is a connection")
	}
	release()
	if _, err := Of(first); err != nil {
		t.Errorf("after its release: %v", err)
	}
	for range 2 {
		if release, err := Of([]int{}); err != nil {
			t.Error(err)
		} else {
			release()
		}
	}
}
