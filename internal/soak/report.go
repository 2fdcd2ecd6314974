package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Report is what a run found.
type Report struct {
	For           time.Duration
	Clients       int
	Before, After Sample // without clients
	Samples       []Sample
	Problems      []string // what was not as it should be; none: the program has passed
}

// Flat is by how much a figure may grow from the second quarter of a run to its last.
const (
	flatRatio  = 1.10
	flatMemory = 24 << 20 // and bytes of memory, besides: a heap breathes
	flatCount  = 64       // and goroutines and descriptors
	fewSamples = 20       // too few to tell growth from a server that is warming up
)

func (r *run) report(before, after Sample) *Report {
	p := &Report{For: r.For, Clients: r.Clients, Before: before, After: after, Samples: r.samples}
	for _, text := range slices.Sorted(maps.Keys(r.failed)) {
		p.problem("%d times: %s", r.failed[text], text)
	}
	if !isRest(before, after) {
		p.problem("a minute after the clients have gone, the process has %d goroutines and %d descriptors; before they came it had %d and %d",
			after.Goroutines, after.Descriptors, before.Goroutines, before.Descriptors)
	}
	for _, f := range figures {
		if len(p.Samples) < fewSamples {
			break
		}
		early, late := p.quarter(1, f.of), p.quarter(3, f.of)
		if late > int64(float64(early)*flatRatio)+f.spare {
			p.problem("%s grew from %d in the second quarter to %d in the last (medians)", f.name, early, late)
		}
	}
	return p
}

// Failed says whether something grew that must stay flat, or a client's operation failed.
func (p *Report) Failed() bool { return len(p.Problems) > 0 }

func (p *Report) problem(format string, args ...any) {
	p.Problems = append(p.Problems, fmt.Sprintf(format, args...))
}

// figure is what of a sample must stay flat.
type figure struct {
	name  string
	unit  int64 // of the chart, in what the sample has
	spare int64
	of    func(Sample) int64
}

var figures = []figure{
	{"resident memory, MiB", 1 << 20, flatMemory, func(s Sample) int64 { return s.Resident }},
	{"Go heap, MiB", 1 << 20, flatMemory, func(s Sample) int64 { return s.Heap }},
	{"goroutines", 1, flatCount, func(s Sample) int64 { return s.Goroutines }},
	{"descriptors", 1, flatCount, func(s Sample) int64 { return s.Descriptors }},
}

// quarter is the median of a figure in one quarter of the samples, from 0.
func (p *Report) quarter(n int, of func(Sample) int64) int64 {
	part := p.Samples[len(p.Samples)*n/4 : len(p.Samples)*(n+1)/4]
	if len(part) == 0 {
		return 0
	}
	all := make([]int64, len(part))
	for i, s := range part {
		all[i] = of(s)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func (p *Report) String() string {
	var b strings.Builder
	last := p.After
	fmt.Fprintf(&b, "%d clients came and went for %v: %d connections, %d operations\n", p.Clients, p.For, last.Lives, last.Operations)
	for _, f := range figures {
		fmt.Fprintf(&b, "%-22s %6d before, %6d and %6d in the second and last quarter, %6d after\n", f.name,
			f.of(p.Before)/f.unit, p.quarter(1, f.of)/f.unit, p.quarter(3, f.of)/f.unit, f.of(p.After)/f.unit)
	}
	for _, problem := range p.Problems {
		fmt.Fprintf(&b, "PROBLEM: %s\n", problem)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// The chart's measures, in pixels.
const (
	chartWidth  = 900
	panelHeight = 120
	marginLeft  = 60
	marginTop   = 30
)

// Chart draws the figures over time, as an SVG.
func (p *Report) Chart() []byte {
	var b strings.Builder
	height := marginTop + len(figures)*panelHeight
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12">`+"\n", chartWidth, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#fff"/>`+"\n")
	fmt.Fprintf(&b, `<text x="10" y="20" font-weight="bold">%d clients come and go for %v</text>`+"\n", p.Clients, p.For)
	for i, f := range figures {
		p.panel(&b, marginTop+i*panelHeight, f)
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// panel draws one figure below y.
func (p *Report) panel(b *strings.Builder, y int, f figure) {
	const top, bottom = 24, 12
	most := int64(1)
	for _, s := range p.Samples {
		most = max(most, f.of(s))
	}
	plot := float64(panelHeight - top - bottom)
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", marginLeft, y+16, f.name)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%d</text>`+"\n", marginLeft-6, y+top+10, most/f.unit)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">0</text>`+"\n", marginLeft-6, y+panelHeight-bottom)
	fmt.Fprintf(b, `<path d="M%d %dH%d" stroke="#999"/>`+"\n", marginLeft, y+panelHeight-bottom, chartWidth-10)
	fmt.Fprintf(b, `<polyline fill="none" stroke="#1f77b4" stroke-width="1.5" points="`)
	for _, s := range p.Samples {
		x := marginLeft + float64(chartWidth-10-marginLeft)*float64(s.At)/float64(max(1, p.For))
		fmt.Fprintf(b, "%.1f,%.1f ", x, float64(y+panelHeight-bottom)-plot*float64(f.of(s))/float64(most))
	}
	b.WriteString(`"/>` + "\n")
}
