package output

import (
	"fmt"
	"io"
	"time"
)

// progressInterval is how often a progress line changes, and how long work takes at least
// before there is one.
const progressInterval = 100 * time.Millisecond

// Progress is a line on a terminal that is rewritten as work goes on. It prints nothing if
// the output is no terminal.
type Progress struct {
	out   io.Writer // nil: no terminal
	last  time.Time
	shown bool
}

// NewProgress makes a Progress for standard error.
func NewProgress(out io.Writer) *Progress {
	if !IsTerminal(out) {
		out = nil
	}
	return &Progress{out: out, last: time.Now()}
}

// Show rewrites the line, if it is time for that.
func (p *Progress) Show(format string, args ...any) {
	if p.out == nil || time.Since(p.last) < progressInterval {
		return
	}
	p.last, p.shown = time.Now(), true
	fmt.Fprintf(p.out, "\r"+format+"\x1b[K", args...)
}

// End erases the line.
func (p *Progress) End() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
