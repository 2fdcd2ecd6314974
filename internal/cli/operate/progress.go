package operate

import (
	"fmt"
	"io"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/backup"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
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
	fmt.Fprintf(l.out, "\r%s %d of %d files, %s of %s\x1b[K", l.verb, p.Files, p.OfFiles, formatBytes(p.Bytes), formatBytes(p.OfBytes))
}

// end erases the line.
func (l *progressLine) end() {
	if l.shown {
		fmt.Fprint(l.out, "\r\x1b[K")
	}
}

// formatBytes gives a number of bytes in the unit that fits it.
func formatBytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefix := float64(n)/unit, 0
	for value >= unit && prefix < len("KMGT")-1 {
		value /= unit
		prefix++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGT"[prefix])
}
