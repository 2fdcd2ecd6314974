package metrics

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

var update = flag.Bool("update", false, "write the table of docs/metrics.md")

// table is the table of docs/metrics.md.
// documented are all metrics, of servers, nodes and fronts.
var documented = slices.Concat(families, ofFront)

func table() string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | what it counts | Azure |\n|---|---|---|---|---|\n")
	for _, f := range documented {
		kind := map[prometheus.ValueType]string{counter: "counter", gauge: "gauge"}[f.kind]
		if f.histograms != nil {
			kind = "histogram"
		}
		azure := f.azure
		if name, rest, _ := strings.Cut(azure, ","); azure != "" && !strings.Contains(name, " ") {
			azure = "`" + name + "`"
			if rest != "" {
				azure += "," + rest
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.name, kind, strings.Join(f.labels, ", "), f.help, azure)
	}
	return b.String()
}

// The page has all metrics. After a change: go test ./internal/metrics -run TestPage -update
func TestPage(t *testing.T) {
	t.Parallel()
	const page, mark = "../../docs/metrics.md", "<!-- metrics -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, printed, found := strings.Cut(string(text), mark)
	switch {
	case !found:
		t.Fatalf("%s has no mark for the table", page)
	case printed == table():
	case !*update:
		t.Errorf("%s is not current: go test ./internal/metrics -run TestPage -update", page)
	default:
		if err := os.WriteFile(page, []byte(before+mark+table()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Names are as Prometheus wants them, each is there once, and a bound stands beside what it
// bounds.
func TestNames(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`^holdfast_[a-z]+(_[a-z]+)*$`)
	seen := map[string]bool{}
	for _, f := range documented {
		if !name.MatchString(f.name) || seen[f.name] || f.help == "" || (f.values == nil) == (f.histograms == nil) {
			t.Errorf("%+v", f)
		}
		if (f.kind == counter) != strings.HasSuffix(f.name, "_total") {
			t.Errorf("%s: a counter's name ends in _total, and no other's", f.name)
		}
		if base, is := strings.CutSuffix(f.name, "_max"); is && !seen[base] && base != "holdfast_descriptors" {
			t.Errorf("%s bounds nothing that is there before it", f.name)
		}
		seen[f.name] = true
	}
}

// The alert rules and the dashboard use metrics that exist.
func TestDeployedFilesUseMetricsThatExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, f := range documented {
		names := []string{f.name}
		if f.histograms != nil {
			names = []string{f.name + "_bucket", f.name + "_sum", f.name + "_count"}
		}
		for _, n := range names {
			known[n] = true
		}
	}
	for _, file := range []string{"alerts.yaml", "grafana.json"} {
		text, err := os.ReadFile("../../deploy/" + file)
		if err != nil {
			t.Fatal(err)
		}
		used := regexp.MustCompile(`holdfast_\w+`).FindAllString(string(text), -1)
		if len(used) < 20 {
			t.Errorf("%s uses %d metrics, there are more", file, len(used))
		}
		for _, name := range used {
			if !known[name] {
				t.Errorf("%s uses %s, which does not exist", file, name)
			}
		}
		if file == "grafana.json" && !json.Valid(text) {
			t.Errorf("%s is no JSON", file)
		}
	}
}

// promtool understands the alert rules.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool, of Debian's package prometheus, is not installed")
	}
	if out, err := exec.Command(promtool, "check", "rules", "../../deploy/alerts.yaml").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
