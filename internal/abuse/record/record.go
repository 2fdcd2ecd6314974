// Package record keeps the figures of runs of attacks in a file, and makes the table of a
// document of them. Command attack calls it.
package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/abuse"
)

// Record is what the runs before and after a change came to, by attack.
type Record struct {
	Columns []Column
}

// Column is one run of all attacks against one version of the program.
type Column struct {
	Name    string // "before", "after"
	Program string // its version
	Date    string
	Results []*abuse.Result
}

// Read reads a file of Write's; one that doesn't exist is empty.
func Read(file string) (*Record, error) {
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return &Record{}, nil
	}
	if err != nil {
		return nil, err
	}
	r := new(Record)
	return r, json.Unmarshal(text, r)
}

// Write writes the record to a file.
func (r *Record) Write(file string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// Add puts one result into a column, in place of an earlier one of its name.
func (r *Record) Add(column, program string, result *abuse.Result) {
	for i := range r.Columns {
		if r.Columns[i].Name == column {
			r.Columns[i].add(program, result)
			return
		}
	}
	c := Column{Name: column}
	c.add(program, result)
	r.Columns = append(r.Columns, c)
}

func (c *Column) add(program string, result *abuse.Result) {
	c.Program, c.Date = program, time.Now().UTC().Format(time.DateOnly)
	for i, old := range c.Results {
		if old.Name == result.Name {
			c.Results[i] = result
			return
		}
	}
	c.Results = append(c.Results, result)
}

func (c *Column) find(name string) *abuse.Result {
	for _, r := range c.Results {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// Markdown is the record as a table, a row for each attack and column.
func (r *Record) Markdown() string {
	var b strings.Builder
	b.WriteString("| attack | | resident: peak, afterwards | GET of another client, p50 / p99 / longest: quiet → attacked | SET, PUBLISH p99 | newcomer, operator | at rest | log lines/s | SIGTERM |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, a := range abuse.Attacks() {
		what := a.What
		for i := range r.Columns {
			if result := r.Columns[i].find(a.Name); result != nil {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", what, r.Columns[i].Name, cells(result))
				what = ""
			}
		}
	}
	return b.String()
}

// cells are the figures of one row.
func cells(r *abuse.Result) string {
	memory := fmt.Sprintf("%d MiB, %d MiB", r.Peak>>20, r.Left>>20)
	rest, stop := "no", "no"
	if r.AtRest {
		rest = short(r.Rest)
	}
	if r.StoppedIn {
		stop = short(r.Stopped)
	}
	if r.Ended != "" {
		memory = fmt.Sprintf("%d MiB, **%s**", r.Peak>>20, r.Ended)
		rest, stop = "–", "–"
	}
	get := latencies(r.Quiet.Get) + " → " + latencies(r.Attacked.Get)
	for _, broken := range r.Broken {
		if rest, found := strings.CutPrefix(broken, "the bystander was not served"); found {
			get += ", then **not served**" + strings.TrimSuffix("", rest)
		}
	}
	return strings.Join([]string{
		memory, get, short(r.Attacked.Set.P99) + ", " + short(r.Attacked.Publish.P99),
		served(r.Newcomer) + ", " + served(r.Operator), rest, fmt.Sprintf("%.0f", r.LinesPerSec()), stop,
	}, " | ")
}

func served(problem string) string {
	if problem == "" {
		return "yes"
	}
	return "**no**"
}

// latencies are those of one kind of round trip as the table has them.
func latencies(l abuse.Latency) string {
	return fmt.Sprintf("%s / %s / %s", short(l.Median), short(l.P99), short(l.Worst))
}

// short is a duration with two digits that matter.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
	default:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	}
}

// The table's place in a document.
const (
	tableBegins = "<!-- attacks: written by make abuse -->\n"
	tableEnds   = "<!-- end of attacks -->\n"
)

// Insert puts the table into a document, between its two marks.
func (r *Record) Insert(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := bytes.Cut(text, []byte(tableBegins))
	_, after, ended := bytes.Cut(rest, []byte(tableEnds))
	if !found || !ended {
		return fmt.Errorf("%s has no place for the table: %q and %q", file, tableBegins, tableEnds)
	}
	return os.WriteFile(file, []byte(string(before)+tableBegins+r.Markdown()+tableEnds+string(after)), 0o644)
}
