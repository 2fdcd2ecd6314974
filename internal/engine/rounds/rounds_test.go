package rounds

import (
	"log/slog"
	"testing"
	"time"
)

// A round that says that there is more is followed by another one after the pause; Stop waits for
// the round that is under way.
func TestRounds(t *testing.T) {
	t.Parallel()
	var r Rounds
	begun, proceed, ended := make(chan int), make(chan struct{}), 0
	n := 0
	r.Start(time.Millisecond, time.Millisecond, func() bool {
		n++
		begun <- n
		<-proceed
		ended = n
		return n == 1
	}, slog.New(slog.DiscardHandler), "a test")
	for want := range 3 {
		if got := <-begun; got != want+1 {
			t.Errorf("round %d, want %d", got, want+1)
		}
		if want < 2 {
			proceed <- struct{}{}
		}
	}
	stopped := make(chan struct{})
	go func() {
		r.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
		t.Error("Stop has returned while a round was under way")
	default:
	}
	close(proceed)
	for {
		select {
		case <-begun: // the one whose time had come at once with Stop
			continue
		case <-stopped:
		}
		break
	}
	if ended < 3 {
		t.Errorf("%d rounds have ended", ended)
	}
	r.Stop()
}
