// Package top draws what "holdfast top" shows: a page of text of an overview.Overview, and a
// terminal that it stands on. It asks no server.
package top

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/doctor"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/overview"
	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// View is what a page is made of.
type View struct {
	Now    overview.Overview
	Before *overview.Overview // from a moment before, for rates; nil: there is none
	Fault  string             // why there is nothing newer; empty: Now is up to date
}

// Page draws a page of at most so many columns and lines; lines 0: it is as long as it has to be. Its first
// line and the titles of its tables begin with a tab, which the terminal shows in bold.
func (v *View) Page(columns, lines int) []string {
	o := &v.Now
	page := []string{
		fmt.Sprintf("%sholdfast %s   up %s   %s", title, o.Version, ago(o.Uptime), o.At.UTC().Format("15:04:05 UTC")),
	}
	page = append(page, v.state()...)
	page = append(page, "",
		line("messages", "in "+v.rate("holdfast_messages_received_total"), "out "+v.rate("holdfast_messages_sent_total"), "dropped "+v.rate("holdfast_messages_dropped_total")),
		line("requests", v.commands()...),
		line("answered", v.times("holdfast_store_command_seconds")...),
		line("fsync", v.times("holdfast_journal_fsync_seconds")...),
		line("clients", v.count("holdfast_connections", "connection"), v.count("holdfast_sessions", "session"), v.count("holdfast_subscriptions", "subscription")),
		line("queues", v.count("holdfast_queued_messages", "message"), v.size("holdfast_queued_disk_bytes")+" on disk", v.count("holdfast_timers", "timer")),
		line("store", v.count("holdfast_store_keys", "key"), v.size("holdfast_store_bytes"), v.count("holdfast_store_watches", "watch")),
		line("memory", v.size("holdfast_memory_pool_bytes")+" for clients", v.most("holdfast_memory_pool_max_bytes"), "process ≤ "+v.size("holdfast_memory_max_bytes")),
		line("disk", v.size("holdfast_disk_free_bytes")+" free", v.size("holdfast_disk_reserve_bytes")+" reserved"),
	)
	if lines == 0 {
		lines = len(page) + 2*(heaviestOfText+2)
	}
	left := lines - len(page) - 4 // two titles, each behind an empty line
	if left >= 2 {
		keys := min(len(o.Keys), max(left/2, left-len(o.Sessions)))
		page = append(page, v.keys(keys, columns)...)
		page = append(page, v.sessions(min(len(o.Sessions), left-keys), columns)...)
	}
	page = page[:min(len(page), lines)]
	for i, l := range page {
		page[i] = cut(l, columns)
	}
	return page
}

// heaviestOfText is how many keys, and how many sessions, a page of any length has, if there are as
// many of both.
const heaviestOfText = 10

// title begins a line that stands out.
const title = "\t"

// state says what is wrong.
func (v *View) state() (lines []string) {
	if v.Fault != "" {
		lines = append(lines, "NO ANSWER   "+output.OneLine(v.Fault))
	}
	if len(v.Now.Unready) > 0 {
		lines = append(lines, "NOT READY   "+strings.Join(v.Now.Unready, "; "))
	}
	if v.Now.Figures["holdfast_disk_low"] > 0 {
		lines = append(lines, "DISK FULL   new data is refused for lack of free space (--disk-reserve)")
	}
	for _, f := range v.Now.Bounds {
		word := "FILLS UP   "
		if f.Level == doctor.Problem {
			word = "FULL       "
		}
		lines = append(lines, word+" "+f.Found)
	}
	if len(lines) == 0 {
		lines = []string{"serves clients, and no bound is close"}
	}
	return lines
}

// line is a name and three columns or more.
func line(name string, columns ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s", name)
	for _, c := range columns {
		fmt.Fprintf(&b, "  %-21s", c)
	}
	return strings.TrimRight(b.String(), " ")
}

// perSecond is how much a figure grows in a second; not a number: that is not known.
func (v *View) perSecond(name string) float64 {
	if v.Before == nil {
		return math.NaN()
	}
	grown, seconds := v.Now.Figures[name]-v.Before.Figures[name], v.Now.At.Sub(v.Before.At).Seconds()
	if grown < 0 || seconds <= 0 {
		return math.NaN() // another process, or another clock
	}
	return grown / seconds
}

func perSecond(rate float64) string {
	if math.IsNaN(rate) {
		return "–"
	}
	return grouped(rate) + "/s"
}

func (v *View) rate(name string) string { return perSecond(v.perSecond(name)) }

// commands are the rates of the commonest requests, and of all others.
func (v *View) commands() (columns []string) {
	const name = "holdfast_store_commands_total"
	rest := v.perSecond(name)
	for _, command := range []string{"GET", "SET"} {
		rate := v.perSecond(name + " " + command)
		rest -= rate
		columns = append(columns, command+" "+perSecond(rate))
	}
	return append(columns, "others "+perSecond(max(rest, 0)))
}

// times are within which most of what was counted since Before was done.
func (v *View) times(name string) []string {
	h := v.Now.Times[name]
	if v.Before != nil {
		before := v.Before.Times[name]
		h.Since(&before)
	}
	return []string{"half within " + within(&h, 0.5), "99 % within " + within(&h, 0.99)}
}

func within(h *histogram.Snapshot, share float64) string {
	bound, ok := h.Within(share)
	if !ok || h.Count < 0 {
		return "–"
	}
	d := time.Duration(bound)
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

func (v *View) count(name, noun string) string {
	n := v.Now.Figures[name]
	if n != 1 {
		noun += "s"
		if strings.HasSuffix(noun, "hs") {
			noun = strings.TrimSuffix(noun, "s") + "es"
		}
	}
	return grouped(n) + " " + noun
}

func (v *View) size(name string) string { return units.FormatBytes(int64(v.Now.Figures[name])) }

func (v *View) most(name string) string {
	if v.Now.Figures[name] == 0 {
		return "of no bound"
	}
	return "of at most " + v.size(name)
}

// keys is the table of the keys that take most.
func (v *View) keys(rows, columns int) []string {
	lines := []string{"", fmt.Sprintf("%s%-*s %10s %7s", title, nameWidth(columns, 20), "KEYS THAT TAKE MOST", "BYTES", "SHARE")}
	all := v.Now.Figures["holdfast_store_bytes"]
	for _, k := range v.Now.Keys[:rows] {
		lines = append(lines, fmt.Sprintf("%s %10s %5.1f %%", pad(output.Word(string(k.Key)), nameWidth(columns, 20)), units.FormatBytes(k.Bytes), min(100, 100*float64(k.Bytes)/max(all, 1))))
	}
	return lines
}

// sessions is the table of the sessions that take most.
func (v *View) sessions(rows, columns int) []string {
	width := nameWidth(columns, 44)
	lines := []string{"", fmt.Sprintf("%s%-*s %-9s %10s %10s %10s", title, width, "SESSIONS THAT TAKE MOST", "STATE", "QUEUE", "MESSAGES", "FILTERS")}
	for _, s := range v.Now.Sessions[:rows] {
		state := "away"
		if s.Connected {
			state = "connected"
		}
		lines = append(lines, fmt.Sprintf("%s %-9s %10s %10s %10s", pad(output.Word(s.ClientID), width), state,
			units.FormatBytes(overview.Weight(&s)), grouped(float64(s.Queued)), grouped(float64(s.Subscriptions))))
	}
	return lines
}

// nameWidth is how many columns a table has left for names.
func nameWidth(columns, others int) int { return max(columns-others, 24) }

// pad makes a name so wide.
func pad(name string, columns int) string {
	name = cut(name, columns)
	return name + strings.Repeat(" ", max(0, columns-width(strings.TrimPrefix(name, title))))
}

// cut makes a line no longer than so many columns.
func cut(s string, columns int) string {
	begin := ""
	if rest, is := strings.CutPrefix(s, title); is {
		begin, s = title, rest
	}
	if width(s) <= columns {
		return begin + s
	}
	return begin + fitting(s, max(0, columns-1)) + "…"
}

// grouped is a number with commas; below 10 it has a decimal, unless that is 0.
func grouped(f float64) string {
	if f < 10 && math.Round(10*f) != 10*math.Round(f) {
		return fmt.Sprintf("%.1f", f)
	}
	digits := fmt.Sprintf("%.0f", f)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// ago is a duration in its two largest units.
func ago(d time.Duration) string {
	days, hours, minutes := int(d.Hours())/24, int(d.Hours())%24, int(d.Minutes())%60
	switch {
	case days > 0:
		return fmt.Sprintf("%d d %d h", days, hours)
	case hours > 0:
		return fmt.Sprintf("%d h %d min", hours, minutes)
	case minutes > 0:
		return fmt.Sprintf("%d min %d s", minutes, int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d s", int(d.Seconds()))
}
