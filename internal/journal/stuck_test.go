package journal

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/journal/uptime"
)

// A batch that is under way while the process is stopped or the machine suspended for an
// hour is not late; one for which the disk takes longer than the limit, while the process
// runs, is.
func TestTimeInWhichTheProcessDidNotRun(t *testing.T) {
	t.Parallel()
	const limit, interval = 30 * time.Second, 30 * time.Second / 8
	var passed time.Duration
	j := &Journal{uptime: uptime.NewOf(func() time.Duration { return passed })}
	j.uptime.Watch()
	run := func(d time.Duration) error { // with the watchdog at work
		for end := passed + d; passed < end; {
			passed += interval
			if err := j.stuck(j.uptime.Tick(interval), limit); err != nil {
				return err
			}
		}
		return nil
	}
	for name, begin := range map[string]func(){
		"a batch":                  func() { j.sealed = &batch{seq: 1, sealed: j.uptime.Now()} },
		"rows for Pebble":          func() { j.giving.Begin(j.uptime) },
		"an fsync at the interval": func() { j.syncing.Begin(j.uptime) },
	} {
		if err := run(time.Minute); err != nil {
			t.Fatal(err)
		}
		begin()
		if err := run(limit / 2); err != nil {
			t.Errorf("%s, after half of the limit: %v", name, err)
		}
		for range 3 {
			passed += time.Hour // in which nothing runs
			if err := j.stuck(j.uptime.Tick(interval), limit); err != nil {
				t.Errorf("%s, after an hour of sleep: %v", name, err)
			}
		}
		for range 100 {
			passed += interval
			j.uptime.LackDescriptor()
			if err := j.stuck(j.uptime.Tick(interval), limit); err != nil {
				t.Errorf("%s, while tables find no file descriptor: %v", name, err)
			}
		}
		if err := run(limit); err == nil || !strings.Contains(err.Error(), "is the disk full, or hanging") {
			t.Errorf("%s, after one and a half times the limit: %v", name, err)
		}
		j.sealed = nil
		j.giving.End()
		j.syncing.End()
	}
}
