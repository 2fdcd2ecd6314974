package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// beginTrace begins a trace of the server that runs on data.
func beginTrace(t *testing.T, data, ready string, args ...string) *process.Process {
	t.Helper()
	p, err := process.Start(exec.Command(binary, append([]string{"trace", "--data", data}, args...)...), regexp.MustCompile(ready))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	if err := p.AwaitReady(); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestTrace(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := serveIn(t, data)
	keys := beginTrace(t, data, "holdfast trace: tracing for 1h0m0s", "--key", "plant/*", "--for", "1h")
	away := beginTrace(t, data, `holdfast trace: the client "sensor-7" is not connected; the trace waits for it`, "--client", "sensor-7", "--for", "1h")
	d.run("set", "plant/7", "on").want(t, "set", 0, "", "")
	mqtttest.Connect(t, d.Addr, mqtttest.ClientID("sensor-7")).Disconnect()
	d.awaitLog(`msg="an operator traces" client="" key=plant/\* for=1h0m0s`)

	for p, line := range map[*process.Process]string{keys: " SET plant/7 ok version=", away: " sensor-7 in  DISCONNECT"} {
		awaitShown(t, p, regexp.MustCompile(line))
	}
	for args, want := range map[string]string{
		"--client absent --for 1ms": `there was no packet of the client "absent"`,
		"--key none/* --for 1ms":    `there was no command on a key that matches "none/*"`,
	} {
		got := start(t, exec.Command(binary, append([]string{"trace", "--data", data}, strings.Fields(args)...)...), nil)
		if got.code != 1 || got.out != "" || !strings.Contains(got.err, want) {
			t.Errorf("%s: %+v, want %q", args, got, want)
		}
	}
}

// A trace shows what docs/command-line.md shows.
func TestTracePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/command-line.md")
	if err != nil {
		t.Fatal(err)
	}
	_, session, found := strings.Cut(string(page), "```text\n$ holdfast trace --client sensor-7\n")
	session, _, _ = strings.Cut(session, "```\n")
	lines := strings.Split(strings.TrimSpace(session), "\n")
	if !found || len(lines) < 5 {
		t.Fatalf("the page has the session %q", session)
	}
	data := t.TempDir()
	d := serveIn(t, data)
	d.run("pub", "--retain", "plant/7/state", "on").want(t, "pub", 0, "", "")
	p := beginTrace(t, data, regexp.QuoteMeta(lines[0]), "--client", "sensor-7")
	d.run("sub", "-i", "sensor-7", "--count", "1", "plant/7/state").want(t, "sub", 0, "on\n", "")
	numbers := regexp.MustCompile(`\d+`)
	for _, line := range lines[1:] {
		want := regexp.MustCompile(numbers.ReplaceAllString(regexp.QuoteMeta(line), `\d+`))
		awaitShown(t, p, want)
	}
}

// awaitShown waits until a trace has shown a line.
func awaitShown(t *testing.T, p *process.Process, want *regexp.Regexp) {
	t.Helper()
	for end := time.Now().Add(patience); !want.MatchString(p.Output()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the trace does not show %s: %s", want, p.Output())
		}
	}
}

func TestTraceIsRefused(t *testing.T) {
	t.Parallel()
	nowhere := t.TempDir()
	for args, want := range map[string]string{
		"":                        "nothing is named to trace: want --client ID or --key PATTERN",
		"--client a":              "no server can be reached through " + nowhere,
		"--client a --rate 10001": "--rate",
		"--client a --payload -1": "--payload",
		"--client a --for 25h":    "--for",
	} {
		start(t, exec.Command(binary, append([]string{"trace", "--data", nowhere}, strings.Fields(args)...)...), nil).want(t, args, 2, "", want)
	}
}
