package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// The commands of docs/metrics.md print what it shows.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	tryRequests(t, "metrics.md")
}

// So do those of docs/console.md.
func TestConsolePage(t *testing.T) {
	t.Parallel()
	tryRequests(t, "console.md")
}

// tryRequests runs the commands of a page's first session, two lines each, against --admin of a
// server.
func tryRequests(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl, by which the page shows requests, is not installed (Debian: curl)")
	}
	d := serveIn(t, t.TempDir(), "--admin", "127.0.0.1:0")
	const said = `msg="health and metrics are served" admin=(127\.0\.0\.1:\d+)\n`
	d.awaitLog(said)
	addr := regexp.MustCompile(said).FindStringSubmatch(d.Output())[1]
	page, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	_, session, found := strings.Cut(string(page), "```console\n")
	session, _, _ = strings.Cut(session, "```\n")
	lines := strings.Split(strings.TrimSpace(session), "\n")
	if !found || len(lines) != 4 {
		t.Fatalf("the page has the session %q", session)
	}
	for i := 0; i < len(lines); i += 2 {
		command := strings.ReplaceAll(strings.TrimPrefix(lines[i], "$ "), "127.0.0.1:9090", addr)
		out, err := exec.Command("sh", "-c", command).Output()
		want := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(strings.ReplaceAll(lines[i+1], "127.0.0.1:9090", addr)), "…", ".+") + "\n$")
		if err != nil || !want.Match(out) {
			t.Errorf("%s: %v, %q, want %q", command, err, out, lines[i+1])
		}
	}
}
