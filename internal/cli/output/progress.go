package output

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progressInterval is how often a progress line changes, and how long work takes at least
// before there is one.
const progressInterval = 100 * time.Millisecond

// Progress is a line on a terminal that is rewritten as work goes on. It prints nothing if
// the output is no terminal. It is safe for concurrent use.
type Progress struct {
	out io.Writer        // nil: no terminal
	now func() time.Time // time.Now, but in tests

	mu    sync.Mutex // held while out is written
	last  time.Time  // guarded by mu
	shown bool       // guarded by mu: the line is on the terminal
	ended bool       // guarded by mu
}

// NewProgress makes a Progress for standard error.
func NewProgress(out io.Writer) *Progress {
	if !IsTerminal(out) {
		out = nil
	}
	return newProgress(out, time.Now)
}

func newProgress(terminal io.Writer, now func() time.Time) *Progress {
	return &Progress{out: terminal, now: now, last: now()}
}

// Show rewrites the line, if it is time for that.
func (p *Progress) Show(format string, args ...any) {
	if p.out == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.now(); !p.ended && now.Sub(p.last) >= progressInterval {
		p.last, p.shown = now, true
		fmt.Fprintf(p.out, "\r"+format+"\x1b[K", args...)
	}
}

// Erase erases the line, until it is shown again.
func (p *Progress) Erase() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

// erase is Erase; the caller holds mu.
func (p *Progress) erase() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.shown = false
	}
}

// End erases the line for good.
func (p *Progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	p.ended = true
}

// Beside gives a writer for what is printed on the same terminal meanwhile: it erases the line
// first. Each call of Write has whole lines. Without a terminal it is out.
func (p *Progress) Beside(out io.Writer) io.Writer {
	if p.out == nil {
		return out
	}
	return &beside{p, out}
}

type beside struct {
	p   *Progress
	out io.Writer
}

func (b *beside) Write(line []byte) (int, error) {
	b.p.mu.Lock()
	defer b.p.mu.Unlock()
	b.p.erase()
	return b.out.Write(line)
}
