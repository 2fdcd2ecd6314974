package timers

import (
	"testing"
)

func TestTimersRunInOrderAndNotAfterRemoval(t *testing.T) {
	t.Parallel()
	ts := New()
	var ran []int
	ts.Add(30, func() { ran = append(ran, 30) })
	ts.Add(10, func() { ran = append(ran, 10) })
	removed := ts.Add(20, func() { ran = append(ran, 20) })
	ts.Add(40, func() { ran = append(ran, 40) })
	if !ts.Remove(removed) || ts.Remove(removed) || ts.Remove(nil) {
		t.Error("a timer is removed once")
	}
	if wait := ts.runDue(30); wait.Milliseconds() != 10 {
		t.Errorf("the next is in %v, want 10ms", wait)
	}
	if len(ran) != 2 || ran[0] != 10 || ran[1] != 30 {
		t.Errorf("ran %v, want 10 and 30", ran)
	}
}
