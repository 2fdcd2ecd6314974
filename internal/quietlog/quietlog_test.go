package quietlog_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/quietlog"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

// newLog makes a log that throttles, and gives what it has written since the last
// look. It must be used inside of a synctest bubble, whose clock it follows.
func newLog(t *testing.T, burst int) (log *slog.Logger, handler *quietlog.Handler, written func() []string) {
	t.Helper()
	var out logs.Text
	text := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "since" {
			return slog.Attr{}
		}
		return a
	}})
	handler = quietlog.New(text, quietlog.Options{Burst: burst, Interval: time.Second})
	return slog.New(handler), handler, out.Take
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the log says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestALineThatIsRepeatedIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, _, written := newLog(t, 2)
		for i := range 1000 {
			log.Info("refusing a connection", "client", i)
		}
		log.Info("another message")
		log.Warn("refusing a connection") // of another level
		expect(t, written(),
			`level=INFO msg="refusing a connection" client=0`,
			`level=INFO msg="refusing a connection" client=1`,
			`level=INFO msg="another message"`,
			`level=WARN msg="refusing a connection"`)

		time.Sleep(time.Second) // nothing more has to happen for the count to be told
		synctest.Wait()
		expect(t, written(), `level=INFO msg="log lines were suppressed" message="refusing a connection" count=998`)

		log.Info("refusing a connection", "client", "x")
		expect(t, written(), `level=INFO msg="refusing a connection" client=x`)
	})
}

func TestLinesThatAreFewPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, _, written := newLog(t, 2)
		for range 5 {
			log.Info("connected")
			log.Info("connected")
			time.Sleep(time.Second)
		}
		if got := written(); len(got) != 10 {
			t.Errorf("%d lines were written, want all 10: %q", len(got), got)
		}
	})
}

func TestDebugLinesAllPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, _, written := newLog(t, 1)
		for range 10 {
			log.Debug("packet")
		}
		if got := written(); len(got) != 10 {
			t.Errorf("%d lines were written, want all 10", len(got))
		}
	})
}

func TestFieldsAndGroupsShareTheCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, handler, written := newLog(t, 1)
		log.With("listener", 1).WithGroup("g").Info("failed", "n", 1)
		log.With("listener", 2).Info("failed")
		handler.Flush()
		expect(t, written(),
			`level=INFO msg=failed listener=1 g.n=1`,
			`level=INFO msg="log lines were suppressed" message=failed count=1`)
	})
}

// What an attacker can put into messages takes no more memory than a bound, and the
// last words of a process pass whatever else there was.
func TestMessagesWithoutEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, handler, written := newLog(t, 1)
		for i := range 10_000 {
			log.Info(fmt.Sprintf("message %d", i))
		}
		if got := written(); len(got) != 257 { // as many as are counted, and one of all others
			t.Errorf("%d lines were written, want 257", len(got))
		}
		log.Error("giving up: writes do not reach the disk")
		expect(t, written(), `level=ERROR msg="giving up: writes do not reach the disk"`)
		handler.Flush()
		expect(t, written(), `level=INFO msg="log lines were suppressed" message=various count=9743`)

		for i := range 256 {
			log.Info(fmt.Sprintf("later message %d", i))
		}
		if got := written(); len(got) != 256 {
			t.Errorf("afterwards %d lines were written, want 256", len(got))
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, handler, written := newLog(t, 10)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 100 {
					log.Info("line")
				}
			})
		}
		wg.Wait()
		handler.Flush()
		got := written()
		if len(got) != 11 || got[10] != `level=INFO msg="log lines were suppressed" message=line count=790` {
			t.Errorf("the log says %q", got)
		}
	})
}

// The burst can be changed while lines are written; 0 lets all pass.
func TestSetBurst(t *testing.T) {
	t.Parallel()
	var out logs.Text
	h := quietlog.New(slog.NewTextHandler(&out, nil), quietlog.Options{Burst: 1, Interval: time.Hour})
	log := slog.New(h.WithAttrs([]slog.Attr{slog.Int("a", 1)}))
	for _, burst := range []int{1, 3, 0} {
		h.SetBurst(burst)
		for range 5 {
			log.Info("hello")
		}
	}
	if n := strings.Count(out.String(), "msg=hello"); n != 1+2+5 {
		t.Errorf("%d lines were written, want 1, then 2 more, then 5:\n%s", n, out.String())
	}
	h.Flush()
}
