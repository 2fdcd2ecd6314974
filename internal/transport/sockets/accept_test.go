package sockets

import (
	"testing"
	"time"
)

// A listener that fails for a minute is asked some 70 times, and has seven lines said
// of it, which tell of every failure.
func TestAcceptFailuresArePaced(t *testing.T) {
	t.Parallel()
	var f AcceptFailures
	now := time.Now()
	var attempts, lines, told int
	for end := now.Add(time.Minute); now.Before(end); attempts++ {
		pause := f.Next()
		if n, due := f.WorthALine(now); due {
			lines++
			told += n
		}
		now = now.Add(pause)
	}
	if attempts > 80 || lines > 7 || told+f.since != attempts {
		t.Errorf("%d attempts and %d lines, which told of %d failures", attempts, lines, told)
	}
}
