package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Markdown is the report as one reads it.
func (r *Report) Markdown() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	p("# Measured\n\nWritten by `go run -C bench/compare .`, which says how. %s, %s, %s, %s. Medians of %d rounds of %.3g s; %.0f s in all.\n\n",
		r.Date, r.Machine, r.Kernel, r.Go, r.Rounds, r.RoundSeconds, r.Elapsed)
	p("| server | version | a write is acknowledged |\n|---|---|---|\n")
	for _, server := range r.Servers {
		durable := r.Durability[server]
		if durable == "" {
			durable = "in memory only"
		}
		if why := r.Skipped[server]; why != "" {
			durable = "skipped: " + why
		}
		p("| %s | %s | %s |\n", server, r.Versions[server], durable)
	}
	r.goalTable(&b)
	p("\n## Rounds\n\nLatencies are from the write of a window of requests to the read that brought the answer; for routing, from publish to delivery. CPU is the server's processes', per million.\n")
	work := ""
	for _, row := range byWork(r.Rows) {
		if len(row.Rounds) == 0 && row.Failed == "" {
			continue
		}
		if row.Work != work {
			work = row.Work
			p("\n**%s**\n\n| server | per second | p50 µs | p99 µs | p99.9 µs | CPU s per million |\n|---|--:|--:|--:|--:|--:|\n", work)
		}
		if len(row.Rounds) == 0 {
			p("| %s | failed: %s | | | | |\n", row.Server, row.Failed)
			continue
		}
		f := row.Median
		note := ""
		if row.Failed != "" {
			note = fmt.Sprintf(" (%d of %d rounds; else %s)", len(row.Rounds), r.Rounds, row.Failed)
		}
		p("| %s%s | %.0f | %.0f | %.0f | %.0f | %.2f |\n", row.Server, note, f.PerSecond, f.P50, f.P99, f.P999, f.CPUPerMillion)
	}
	r.measureTables(&b)
	return b.String()
}

func (r *Report) goalTable(b *strings.Builder) {
	fmt.Fprintf(b, "\n## Goals\n\n| work | goal | measured | met |\n|---|---|---|---|\n")
	for _, g := range r.Goals {
		met := "–"
		if g.Met != nil {
			met = map[bool]string{true: "yes", false: "**no**"}[*g.Met]
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", g.Work, g.Goal, g.Measured, met)
	}
}

// byWork brings the rows of one work together, in the order of their first.
func byWork(rows []*Row) []*Row {
	first := map[string]int{}
	for i, row := range rows {
		if _, ok := first[row.Work]; !ok {
			first[row.Work] = i
		}
	}
	return slices.SortedStableFunc(slices.Values(rows), func(a, b *Row) int { return first[a.Work] - first[b.Work] })
}

// measureTables gives the single figures: a table per work, a column per server.
func (r *Report) measureTables(b *strings.Builder) {
	fmt.Fprintf(b, "\n## Single figures\n")
	var works []string
	for _, m := range r.Measures {
		if !slices.Contains(works, m.Work) {
			works = append(works, m.Work)
		}
	}
	for _, work := range works {
		var servers, whats []string
		cells := map[string]string{}
		for _, m := range r.Measures {
			if m.Work != work {
				continue
			}
			if !slices.Contains(servers, m.Server) {
				servers = append(servers, m.Server)
			}
			what := m.What
			if m.Unit != "" {
				what += ", " + m.Unit
			}
			if !slices.Contains(whats, what) {
				whats = append(whats, what)
			}
			cells[m.Server+"|"+what] = number(m.Value)
		}
		fmt.Fprintf(b, "\n| %s | %s |\n|---|%s\n", work, strings.Join(servers, " | "), strings.Repeat("--:|", len(servers)))
		for _, what := range whats {
			fmt.Fprintf(b, "| %s |", what)
			for _, s := range servers {
				fmt.Fprintf(b, " %s |", cells[s+"|"+what])
			}
			fmt.Fprintln(b)
		}
	}
	if len(r.Skipped) > 0 {
		fmt.Fprintf(b, "\nSkipped: %s.\n", strings.Join(slices.Sorted(maps.Keys(r.Skipped)), ", "))
	}
}

func number(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
