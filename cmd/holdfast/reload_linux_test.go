package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
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

// A node of a cluster that does not lead reads its configuration file and its audit log again at SIGHUP, too. What
// cannot be used is refused there and then; what can be is in force when the node leads.
func TestSIGHUPOnANodeThatFollows(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c"}
	c := newAwayCluster(t, names...)
	files := t.TempDir()
	file := func(name string) string { return filepath.Join(files, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(file(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		write(name+".yaml", "max-keys: 1\nlog-level: info\n")
		write(name+".passwords", "")
	}
	c.flags = func(name string) []string {
		return []string{"--config", file(name + ".yaml"), "--audit-log", file(name + ".audit"), "--password-file", file(name + ".passwords"), "--allow-anonymous"}
	}
	c.startAll(names...)
	leader := c.until("a", "a leader, and no node is missing", func(r *control.Report) bool { return r.Leader != "" && len(r.Missing) == 0 }).Leader
	follower := "a"
	if follower == leader {
		follower = "b"
	}
	said := func(text string) {
		t.Helper()
		for end := time.Now().Add(patience); !strings.Contains(c.running[follower].Output(), text); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("node %s does not say %q", follower, text)
			}
		}
	}
	set := func(key string, code int, why string) {
		t.Helper()
		_, port, _ := strings.Cut(c.addrs[follower], ":")
		for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
			got := start(t, exec.Command(binary, "set", "-p", port, key, "1"), nil)
			if got.code == code && strings.Contains(got.err, why) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("set %s: %+v, want status %d, %q", key, got, code, why)
			}
		}
	}
	set("a", 0, "")
	set("b", 2, "quota")

	write(follower+".yaml", "max-keys: 2\nmax-keyz: 4\n")
	write(follower+".passwords", "no password\n")
	c.running[follower].Signal(syscall.SIGHUP)
	said("keeping the old settings: the configuration cannot be used")
	said("keeping the old password file: the new one cannot be used")

	write(follower+".yaml", "max-keys: 2\nlog-level: debug\nmax-scans: 3\nmax-queued-messages: 1\nqueue-full: reject\n")
	write(follower+".passwords", "")
	if err := os.Remove(file(follower + ".audit")); err != nil {
		t.Fatal(err)
	}
	c.running[follower].Signal(syscall.SIGHUP)
	said(`settings="max-keys from 1 to 2, max-queued-messages from the default to 1, queue-full from the default to reject, log-level from info to debug"`)
	said(`msg="these settings change when the server is started again" settings=max-scans`)
	said(`msg="the password file was read again"`)
	if _, err := os.Stat(file(follower + ".audit")); err != nil {
		t.Errorf("the audit log was not opened again: %v", err)
	}

	c.lead(follower)
	set("b", 0, "")
	set("c", 2, "quota")
	client := mqtttest.Connect(t, c.addrs[follower], mqtttest.Persistent("away"))
	client.Subscribe("news", 1)
	client.Disconnect()
	client.AwaitEnd()
	publisher := mqtttest.Connect(t, c.addrs[follower])
	for _, want := range []mqtt.ReasonCode{mqtt.Success, mqtt.QuotaExceeded} {
		if got := publisher.Offer(mqtttest.Message{Topic: "news", Payload: "x", QoS: 1}).Code; got != want {
			t.Errorf("a message for a client that is away: %v, want %v", got, want)
		}
	}
}
