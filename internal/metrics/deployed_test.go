package metrics_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/clustered/clusteredtest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// query is one of the alert rules or of the dashboard.
type query struct {
	where  string // file and name
	text   string // in the language of Prometheus
	legend string // text with labels of the result
}

// alertQueries are those of deploy/alerts.yaml.
func alertQueries(t *testing.T) (all []query) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all = append(all, query{"alerts.yaml, " + r.Alert, r.Expr, strings.ReplaceAll(r.Annotations["summary"], "$labels.", "")})
		}
	}
	return all
}

// dashboardQueries are those of deploy/grafana.json.
func dashboardQueries(t *testing.T) (all []query) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Query string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all = append(all, query{"grafana.json, " + p.Title, target.Expr, target.LegendFormat})
		}
	}
	for _, v := range dashboard.Templating.List {
		all = append(all, query{"grafana.json, the variable " + v.Name, v.Query, ""})
	}
	return all
}

// series are what a server has at /metrics: for each name the labels of its values.
type series map[string][]map[string]string

var (
	sample    = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? \S+$`)
	labelPair = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
)

// scrape reads /metrics of a server.
func scrape(t *testing.T, addr string) series {
	t.Helper()
	r, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", r.Status, err)
	}
	all := series{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		m := sample.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("no sample: %s", line)
		}
		labels := map[string]string{"instance": addr, "job": "holdfast"} // which Prometheus adds
		for _, pair := range labelPair.FindAllStringSubmatch(m[2], -1) {
			labels[pair[1]] = pair[2]
		}
		all[m[1]] = append(all[m[1]], labels)
	}
	return all
}

// has says whether a value of a metric has a label, and one of these values if there are any.
func (s series) has(metric, label string, values ...string) bool {
	return slices.ContainsFunc(s[metric], func(labels map[string]string) bool {
		value, is := labels[label]
		return is && (len(values) == 0 || slices.Contains(values, value))
	})
}

var (
	selector = regexp.MustCompile(`\b(?:holdfast|process|go)_\w+(?:\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`(\w+)(=~|=)"([^"]*)"`)
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
	inLegend = regexp.MustCompile(`\{\{ *(\w+) *\}\}`)
)

// check fails unless the server has all metrics of a query, with the labels by which it chooses and groups
// them, and those that its legend shows.
func (s series) check(t *testing.T, q query) {
	t.Helper()
	var names []string
	for _, m := range selector.FindAllString(q.text, -1) {
		name, matchers, _ := strings.Cut(m, "{")
		names = append(names, name)
		if len(s[name]) == 0 {
			t.Errorf("%s: the server has no %s", q.where, name)
			continue
		}
		for _, m := range matcher.FindAllStringSubmatch(matchers, -1) {
			values := strings.Split(m[3], "|") // of =~ as well
			if strings.HasPrefix(m[3], "$") {
				values = nil
			}
			if len(values) == 0 && !s.has(name, m[1]) {
				t.Errorf("%s: no value of %s has %s", q.where, name, m[0])
			}
			for _, v := range values {
				if !s.has(name, m[1], v) {
					t.Errorf("%s: no value of %s has %s=%q", q.where, name, m[1], v)
				}
			}
		}
	}
	if len(names) == 0 && !strings.HasPrefix(q.text, "up{") && q.text != "prometheus" {
		t.Errorf("%s has no metric: %s", q.where, q.text)
	}
	var by []string
	for _, m := range grouping.FindAllStringSubmatch(q.text, -1) {
		by = append(by, strings.Split(m[1], ", ")...)
	}
	shown := by
	for _, m := range inLegend.FindAllStringSubmatch(q.legend, -1) {
		shown = append(shown, m[1])
		if len(by) > 0 && !slices.Contains(by, m[1]) {
			t.Errorf("%s: the legend %q shows the label %s, which %s takes away", q.where, q.legend, m[1], q.text)
		}
	}
	for _, label := range shown {
		for _, name := range names {
			if len(s[name]) > 0 && !s.has(name, label) {
				t.Errorf("%s: no value of %s has the label %s", q.where, name, label)
			}
		}
	}
}

// Every metric of the alert rules and of the dashboard is at /metrics of a running server, with the
// labels, and the values of labels, that they choose it by.
func TestDeployedFilesFitARunningServer(t *testing.T) {
	t.Parallel()
	s := testserver.Start(t, func(c *server.Config) {
		c.Admin = "127.0.0.1:0"
		c.Login.Webhook.URL = "http://127.0.0.1:1"
		c.Bridges = []bridge.Config{{Name: "plant", URL: "mqtt://127.0.0.1:1", Topics: []bridge.Topic{{Filter: "#", Out: true}}}}
	})
	all := scrape(t, s.AdminAddr().String())
	alerts, panels := alertQueries(t), dashboardQueries(t)
	if len(alerts) < 20 || len(panels) < 40 {
		t.Errorf("%d alerts and %d queries of the dashboard were found, there are more", len(alerts), len(panels))
	}
	for _, q := range append(alerts, panels...) {
		if !strings.Contains(q.text, "holdfast_cluster_") {
			all.check(t, q)
		}
	}
}

// Those of a cluster are at /metrics of its nodes, of which the dashboard finds also one that does not lead.
func TestDeployedFilesFitNodes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var peers []string
	var places []clusteredtest.Node
	for _, name := range []string{"a", "b"} {
		address, err := process.UnusedAddress()
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, name+"="+address)
		places = append(places, clusteredtest.Node{Name: name, Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"})
	}
	nodes := clusteredtest.Start(ctx, t, peers, places...)
	all := series{}
	// Until one leads and hears the other, and both have compared their clocks.
	for len(all["holdfast_cluster_follower_lag_entries"]) == 0 || len(all["holdfast_cluster_clock_offset_seconds"]) < len(nodes) {
		if ctx.Err() != nil {
			t.Fatalf("no node leads, or the clocks are not compared: %v", all)
		}
		time.Sleep(20 * time.Millisecond)
		all = series{}
		for _, n := range nodes {
			for name, values := range scrape(t, n.AdminAddr().String()) {
				all[name] = append(all[name], values...)
			}
		}
	}
	found := 0
	for _, q := range append(alertQueries(t), dashboardQueries(t)...) {
		if strings.Contains(q.text, "holdfast_cluster_") {
			all.check(t, q)
			found++
		}
		if text, is := strings.CutPrefix(q.text, "label_values("); is {
			metric, label, _ := strings.Cut(strings.TrimSuffix(text, ")"), ", ")
			for _, n := range nodes {
				if addr := n.AdminAddr().String(); !all.has(metric, label, addr) {
					t.Errorf("%s: no value of %s has %s=%q, which is a node", q.where, metric, label, addr)
				}
			}
		}
	}
	if found < 7 {
		t.Errorf("%d queries about a cluster were found, there are more", found)
	}
}
