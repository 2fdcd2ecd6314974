package output

import (
	"io"
	"strings"
	"testing"
	"time"
)

// A progress line comes after a tenth of a second, changes as often, and makes room for other
// lines.
func TestProgress(t *testing.T) {
	t.Parallel()
	var screen strings.Builder
	now := time.Unix(0, 0)
	after := func(d time.Duration) { now = now.Add(d) }
	p := newProgress(&screen, func() time.Time { return now })
	log := p.Beside(&screen)

	after(progressInterval - 1)
	p.Show("read %d rows", 1)
	p.Erase() // of nothing
	after(1)
	p.Show("read %d rows", 2)
	after(progressInterval - 1)
	p.Show("read %d rows", 3)
	_, _ = io.WriteString(log, "level=WARN\n")
	_, _ = io.WriteString(log, "level=INFO\n")
	after(1)
	p.Show("read %d rows", 4)
	p.End()
	after(time.Hour)
	p.Show("read %d rows", 5)
	_, _ = io.WriteString(log, "listening\n")

	const erased = "\r\x1b[K"
	want := "\rread 2 rows\x1b[K" + erased + "level=WARN\nlevel=INFO\n" + "\rread 4 rows\x1b[K" + erased + "listening\n"
	if screen.String() != want {
		t.Errorf("the terminal got %q, want %q", screen.String(), want)
	}
}

// What is no terminal gets no progress, and other lines as they are.
func TestProgressWithoutATerminal(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	p := NewProgress(&out)
	p.last = time.Time{}
	p.Show("read 1 rows")
	_, _ = io.WriteString(p.Beside(&out), "line\n")
	p.End()
	if out.String() != "line\n" {
		t.Errorf("it got %q", out.String())
	}
}
