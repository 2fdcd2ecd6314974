package operate

import (
	"fmt"
	"io"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/backup"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// progressLine is a line on a terminal that is rewritten as work goes on. Nothing is
// printed if the output is no terminal.
type progressLine struct {
	out   io.Writer
	verb  string
	last  time.Time
	shown bool
}

// progressInterval is how often the line is rewritten at the most.
const progressInterval = 100 * time.Millisecond

func newProgressLine(out io.Writer, verb string) *progressLine {
	if !output.IsTerminal(out) {
		out = nil
	}
	return &progressLine{out: out, verb: verb}
}

func (l *progressLine) show(p backup.Progress) {
	if l.out == nil || time.Since(l.last) < progressInterval {
		return
	}
	l.last, l.shown = time.Now(), true
	fmt.Fprintf(l.out, "\r%s %d of %d files, %s of %s\x1b[K", l.verb, p.Files, p.OfFiles, units.FormatBytes(p.Bytes), units.FormatBytes(p.OfBytes))
}

// end erases the line.
func (l *progressLine) end() {
	if l.shown {
		fmt.Fprint(l.out, "\r\x1b[K")
	}
}
