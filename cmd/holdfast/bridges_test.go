package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// The configurations of docs/bridges.md are read, and its session prints what it shows, on
// other ports. The servers of the session run before its first command does.
func TestBridgesPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/bridges.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, block := range regexp.MustCompile("(?s)```yaml\n# (\\S+)\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		name := filepath.Join(dir, block[1])
		if err := os.WriteFile(name, []byte(block[2]), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(binary, "config", "--config", name).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", block[1], err, out)
		}
	}
	session := regexp.MustCompile("(?s)```console\n(.*?)```").FindStringSubmatch(string(page))[1]
	near, far := testserver.FreeAddress(), testserver.FreeAddress()
	_, nearPort, _ := strings.Cut(near, ":")
	_, farPort, _ := strings.Cut(far, ":")
	ports := strings.NewReplacer("1883", nearPort, "1884", farPort, "near.yaml", filepath.Join(dir, "near.yaml"), "--data ", "--data "+dir+"/")
	config, _ := os.ReadFile(filepath.Join(dir, "near.yaml"))
	if err := os.WriteFile(filepath.Join(dir, "near.yaml"), []byte(ports.Replace(string(config))), 0o600); err != nil {
		t.Fatal(err)
	}
	var script, want strings.Builder
	script.WriteString("exec 2>&1\n")
	servers := 0
	for line := range strings.Lines(ports.Replace(session)) {
		command, is := strings.CutPrefix(line, "$ ")
		server, runs := strings.CutSuffix(command, " &\n")
		switch {
		case runs:
			testserver.Run(t, strings.Fields(strings.TrimPrefix(server, "holdfast serve "))...)
			servers++
		case is:
			script.WriteString(command)
		default:
			want.WriteString(line)
		}
	}
	sh := exec.Command("sh", "-c", script.String())
	sh.Dir = dir
	sh.Env = append(os.Environ(), "HOLDFAST_PORT="+nearPort, "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	got, err := sh.CombinedOutput()
	if err != nil || string(got) != want.String() || servers != 2 {
		t.Errorf("printed %q, %v; the page shows %q and starts %d servers", got, err, want.String(), servers)
	}
}
