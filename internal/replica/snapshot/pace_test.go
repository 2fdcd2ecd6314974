package snapshot

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A sender sends no more bytes in a second than its rate, and makes up for nothing when the
// receiver was slow.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := pacer{ctx: t.Context(), rate: 2 << 20}
		begun := time.Now()
		send := func(mib int, want time.Duration) {
			t.Helper()
			for range mib {
				if err := p.sent(1 << 20); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(begun); took != want {
				t.Errorf("after %v, want %v", took, want)
			}
		}
		send(10, 5*time.Second)
		time.Sleep(time.Minute) // the receiver reads nothing
		send(4, 67*time.Second)
		ending, end := context.WithCancel(t.Context())
		p.ctx = ending
		time.AfterFunc(time.Second, end)
		if err := p.sent(1 << 40); !errors.Is(err, context.Canceled) || time.Since(begun) != 68*time.Second {
			t.Errorf("at the end of the context: %v after %v", err, time.Since(begun))
		}
		begun = time.Now()
		p = pacer{ctx: t.Context(), rate: 2 << 20, done: 1 << 20, all: 19 << 20, urgent: func(sent, all int64) bool { return sent > all/2 }}
		send(8, 4*time.Second)
		send(8, 5*time.Second) // it is urgent
		begun = begun.Add(-63 * time.Second)
		p = pacer{ctx: t.Context()}
		if err := p.sent(1 << 40); err != nil || time.Since(begun) != 68*time.Second {
			t.Errorf("without a rate: %v after %v", err, time.Since(begun))
		}
	})
}
