package report

import (
	"bytes"
	"fmt"
	"math"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/svg"
)

// The chart's measures in pixels.
const (
	ChartWidth  = 900
	labelWidth  = 200
	panelWidth  = (ChartWidth - labelWidth) / 2
	barHeight   = 14
	rowHeight   = 19
	valueWidth  = 70
	panelMargin = 16
)

// chart draws what a reader looks for first: requests per second, and what a
// million of them cost.
func (r *Report) chart() []byte {
	var body bytes.Buffer
	y := 74
	for _, work := range []string{
		"GET 50 × 1, 64 B", "GET 50 × 16, 64 B", "SET 50 × 1, 64 B", "SET 50 × 16, 64 B",
		"fan-out 1 → 100, QoS 0", "fan-out 1 → 100, QoS 1", "persistent 50 pairs × 16, QoS 1",
	} {
		y = r.panel(&body, y, work)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12">`+"\n", ChartWidth, y)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#fff"/>`+"\n")
	svg.Text(&b, 10, 24, "start", "bold", "Holdfast beside others")
	svg.Text(&b, 10, 44, "start", "normal", fmt.Sprintf("%s; %s; medians of %d rounds; server and load generator share the cores", r.Date, r.Machine, r.Rounds))
	svg.Text(&b, labelWidth, 64, "start", "bold", "per second")
	svg.Text(&b, labelWidth+panelWidth, 64, "start", "bold", "server CPU seconds per million (shorter is better)")
	b.Write(body.Bytes())
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// panel draws one work's servers below y, and gives where the next begins.
func (r *Report) panel(b *bytes.Buffer, y int, work string) int {
	var rows []*Row
	var maxRate, maxCPU float64
	for _, row := range r.Rows {
		if row.Work == work && len(row.Rounds) > 0 {
			rows = append(rows, row)
			maxRate = math.Max(maxRate, row.Median.PerSecond)
			maxCPU = math.Max(maxCPU, row.Median.CPUPerMillion)
		}
	}
	if len(rows) == 0 {
		return y
	}
	y += panelMargin
	svg.Text(b, 10, y, "start", "bold", work)
	for _, row := range rows {
		y += rowHeight
		color := "#9aa5b1"
		switch row.Server {
		case servers.Holdfast:
			color = "#0b6e4f"
		case servers.BareLoop:
			color = "#4a90c2"
		}
		svg.Text(b, labelWidth-8, y, "end", "normal", row.Server)
		bar(b, labelWidth, y, row.Median.PerSecond/maxRate, color, thousands(row.Median.PerSecond))
		if maxCPU > 0 {
			bar(b, labelWidth+panelWidth, y, row.Median.CPUPerMillion/maxCPU, color, fmt.Sprintf("%.2f", row.Median.CPUPerMillion))
		}
	}
	return y + panelMargin
}

func bar(b *bytes.Buffer, x, y int, share float64, color, label string) {
	width := int(share * float64(panelWidth-valueWidth))
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" rx="2" fill="%s"/>`+"\n", x, y-barHeight+3, max(width, 1), barHeight, color)
	svg.Text(b, x+width+5, y, "start", "normal", label)
}

// thousands writes a number as a reader wants it: 1.58M, 136k.
func thousands(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.2fM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.0fk", v/1e3)
	case v >= 1e3:
		return fmt.Sprintf("%.1fk", v/1e3)
	}
	return fmt.Sprintf("%.0f", v)
}
