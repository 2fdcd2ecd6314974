package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// At SIGHUP the server reads its configuration file again, puts in force what may change,
// and names what waits for a restart. A file that cannot be used changes nothing.
func TestSIGHUP(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "holdfast.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("max-keys: 1\nlog-level: warn\nmax-scans: 2\n")
	d := serveIn(t, t.TempDir(), "--config", file, "--max-sessions", "50", "--log-level", "info")
	hangup := func() { d.Process.Signal(syscall.SIGHUP) }
	d.run("set", "a", "1").want(t, "the first key", 0, "", "")
	for _, key := range []string{"b", "c"} { // a client with few keys may pass the bound by a sixteenth of it: not of 1
		d.run("set", key, "1").want(t, "a key above the bound", 2, "", "quota")
	}

	write("max-keys: 3\nmax-sessions: 7\nmax-scans: 3\ndata: elsewhere\nlisteners: [{url: 127.0.0.1:1}]\n")
	hangup()
	d.awaitLog(`level=INFO msg="settings were changed" settings="max-keys from 1 to 3"\n`)
	d.awaitLog(`level=WARN msg="these settings change when the server is started again" settings="max-scans, listeners"\n`)
	d.run("set", "b", "1").want(t, "a key below the new bound", 0, "", "")

	write("max-keys: 3\nmax-keyz: 4\n")
	hangup()
	d.awaitLog(`level=ERROR msg="keeping the old settings: the configuration cannot be used" error=".*holdfast.yaml:2: unknown setting max-keyz; did you mean max-keys\?`)
	d.run("set", "c", "1").want(t, "with the old settings", 0, "", "")

	write("max-scans: 2\nmax-keys: 3\n")
	hangup()
	d.awaitLog(`level=INFO msg="the configuration was read again: it says the same"`)

	write("max-scans: 2\n")
	hangup()
	d.awaitLog(`settings="max-keys from 3 to the default"`)
	if said := d.Output(); strings.Count(said, "settings were changed") != 2 {
		t.Errorf("it said\n%s", said)
	}
}
