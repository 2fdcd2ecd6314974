package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// daemon is a server of a test's own.
type daemon struct {
	*testserver.Program
	t *testing.T
}

// serveIn starts a server and waits until it listens.
func serveIn(t *testing.T, data string, flags ...string) *daemon {
	t.Helper()
	return &daemon{testserver.Run(t, append(flags, "--data", data)...), t}
}

// startIn starts a server and waits until it listens or has ended.
func startIn(t *testing.T, data string, flags ...string) *daemon {
	t.Helper()
	return &daemon{testserver.Launch(t, testserver.Command(t, append(flags, "--data", data)...)...), t}
}

// run runs a command line against this server.
func (d *daemon) run(args ...string) result {
	d.t.Helper()
	return start(d.t, exec.Command(binary, append(args, "-p", d.Port())...), nil)
}

// runWith is run with standard input.
func (d *daemon) runWith(in io.Reader, args ...string) result {
	d.t.Helper()
	return start(d.t, exec.Command(binary, append(args, "-p", d.Port())...), in)
}

// sys reads one of the server's own figures.
func (d *daemon) sys(name string) string {
	d.t.Helper()
	c := mqtttest.Connect(d.t, d.Addr)
	defer c.Disconnect()
	c.Subscribe("$SYS/"+name, 0)
	return string(c.Receive().Payload)
}

func TestDurabilityIsSaid(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"sync", "interval=500", "none"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			data := t.TempDir()
			d := serveIn(t, data, "--durability", mode)
			if !strings.Contains(d.Output(), "durability "+mode+`" version=`) {
				t.Errorf("it said:\n%s", d.Output())
			}
			if warned := strings.Contains(d.Output(), "a crash loses"); warned != (mode != "sync") {
				t.Errorf("warned of the mode: %v; it said:\n%s", warned, d.Output())
			}
			if got := d.sys("store/durability"); got != mode {
				t.Errorf("$SYS says %q", got)
			}
			d.run("set", "k", "v").want(t, "set", 0, "", "")
			d.Stop()
			d = serveIn(t, data)
			d.run("get", "k").want(t, "get after a clean stop", 0, "v", "")
		})
	}
}

func holdfastAlone(t *testing.T, args ...string) result {
	t.Helper()
	return start(t, exec.Command(binary, args...), nil)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	holdfastAlone(t, "check", "--data", data).want(t, "nothing there", 2, "", "there is no data directory")

	d := serveIn(t, data)
	d.run("set", "k", "value").want(t, "set", 0, "", "")
	holdfastAlone(t, "check", "--data", data).want(t, "in use", 2, "", "another process has "+data+" open; stop it")
	d.Kill()
	holdfastAlone(t, "check", "--data", data).want(t, "killed", 0,
		data+" is sound: 1 keys (6 bytes), 0 sessions, 0 subscriptions, 0 queued messages, 0 retained messages, 0 wills\n", "")

	// Given one wrong bit at the end of what a killed server left, it is mended.
	flipBit(t, newestLog(t, data), func(written int) int { return written - 1 })
	got := holdfastAlone(t, "check", "--data", data)
	if got.code != 0 || !strings.HasPrefix(got.out, "note: "+filepath.Base(newestLog(t, data))) || !strings.Contains(got.out, data+" is sound: 1 keys (6 bytes)") {
		t.Errorf("a wrong bit at the end: %+v", got)
	}
	d = serveIn(t, data)
	d.run("get", "k").want(t, "get", 0, "value", "")
	d.run("set", "k", "other").want(t, "set", 0, "", "")
	d.Stop()

	// Given one in a batch that a clean stop has said to be on the disk, it is damage.
	flipBit(t, newestLog(t, data), func(written int) int { return written - 22 }) // in front of what the stop wrote
	got = holdfastAlone(t, "check", "--data", data)
	if got.code != 1 || !strings.HasPrefix(got.out, "problem: "+filepath.Base(newestLog(t, data))) || !strings.Contains(got.err, "1 problems found") {
		t.Errorf("a flipped bit: %+v", got)
	}
	d = startIn(t, data)
	if code := d.Stop(); code != 2 || !strings.Contains(d.Output(), "data directory is damaged: "+data+": "+filepath.Base(newestLog(t, data))) {
		t.Errorf("serve with a flipped bit: status %d, it said:\n%s", code, d.Output())
	}
}

// A log that has been deleted is missed, whether the server was stopped or killed.
func TestDeletedLogIsMissed(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	d := serveIn(t, data)
	d.run("set", "k", "value").want(t, "set", 0, "", "")
	d.Kill()
	if err := os.Remove(newestLog(t, data)); err != nil {
		t.Fatal(err)
	}
	if got := holdfastAlone(t, "check", "--data", data); got.code != 1 || !strings.Contains(got.out, "the log is missing") {
		t.Errorf("check: %+v", got)
	}
	d = startIn(t, data)
	if code := d.Stop(); code != 2 || !strings.Contains(d.Output(), "the log is missing") {
		t.Errorf("serve: status %d, it said:\n%s", code, d.Output())
	}
}

// newestLog is the newest file of the log that has batches: a stop begins another one.
func newestLog(t *testing.T, data string) string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(data, "*.journal"))
	if err != nil {
		t.Fatal(err)
	}
	for _, log := range slices.Backward(logs) {
		content, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if len(bytes.Trim(content, "\x00")) > 0 {
			return log
		}
	}
	t.Fatal("no log has batches:", logs)
	return ""
}

// flipBit flips a bit of a log, in the byte that at says, of those that are no zeros ahead.
func flipBit(t *testing.T, path string, at func(written int) int) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[at(len(bytes.TrimRight(content, "\x00")))] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNewerDataIsRefused(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	serveIn(t, data).Stop()
	if err := os.WriteFile(filepath.Join(data, "marker.format-version.000999.999"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := startIn(t, data)
	const says = "needs a newer version of this program"
	if code := d.Stop(); code != 2 || !strings.Contains(d.Output(), data+" "+says) {
		t.Errorf("status %d, it said:\n%s", code, d.Output())
	}
	holdfastAlone(t, "check", "--data", data).want(t, "check", 2, "", says)
}

func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, copied, restored := filepath.Join(dir, "data"), filepath.Join(dir, "backup"), filepath.Join(dir, "restored")
	holdfastAlone(t, "backup", copied, "--data", data).want(t, "no server", 2, "", "no server can be reached through "+data)
	d := serveIn(t, data)
	d.run("set", "k", "value").want(t, "set", 0, "", "")
	got := holdfastAlone(t, "backup", copied, "--data", data)
	if got.code != 0 || got.err != "" || !strings.HasPrefix(got.out, copied+" holds a backup: ") || strings.Count(got.out, "\n") != 1 {
		t.Errorf("backup: %+v", got)
	}
	holdfastAlone(t, "backup", copied, "--data", data).want(t, "a second one", 2, "", "nothing is overwritten")
	d.run("del", "k")
	d.Kill() // leaves its socket behind

	holdfastAlone(t, "restore", copied).want(t, "where to", 2, "", `"data" not set`)
	holdfastAlone(t, "restore", copied, "--data", data).want(t, "over other data", 2, "", "nothing is overwritten")
	holdfastAlone(t, "restore", copied, "--data", restored).want(t, "restore", 0,
		restored+" is restored: 1 keys (6 bytes), 0 sessions, 0 subscriptions, 0 queued messages, 0 retained messages, 0 wills\n", "")
	d = serveIn(t, restored)
	d.run("get", "k").want(t, "get", 0, "value", "")
	d = serveIn(t, data)
	d.run("get", "k").want(t, "get", 1, "", "no such key")
	holdfastAlone(t, "backup", filepath.Join(dir, "second"), "--data", data)
}

// Timers survive a backup, its restoring and a salvage, are counted by check, and are delivered.
func TestTimersAreBackedUpAndSalvaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, copied, restored, saved := filepath.Join(dir, "data"), filepath.Join(dir, "backup"), filepath.Join(dir, "restored"), filepath.Join(dir, "saved")
	d := serveIn(t, data)
	for _, id := range []string{"a", "b", "c"} {
		d.run("pub", "--after", "1h", "--id", id, "later", id).want(t, "pub", 0, "", "")
	}
	holdfastAlone(t, "backup", copied, "--data", data)
	d.run("timers", "cancel", "a").want(t, "cancel", 0, "", "")
	d.Kill()
	const sound = ": 0 keys (0 bytes), 0 sessions, 0 subscriptions, 0 queued messages, 0 retained messages, 0 wills, "
	holdfastAlone(t, "check", "--data", data).want(t, "check", 0, data+" is sound"+sound+"2 messages to be delivered later\n", "")
	holdfastAlone(t, "restore", copied, "--data", restored).want(t, "restore", 0, restored+" is restored"+sound+"3 messages to be delivered later\n", "")
	holdfastAlone(t, "check", "--data", restored).want(t, "check", 0, restored+" is sound"+sound+"3 messages to be delivered later\n", "")
	holdfastAlone(t, "salvage", data, "--data", saved).want(t, "salvage", 0, saved+" holds what was salvaged"+sound+"2 messages to be delivered later\n", "")
	for dir, want := range map[string]string{restored: "abc", saved: "bc"} {
		d := serveIn(t, dir)
		c := mqtttest.Connect(t, d.Addr)
		c.Subscribe("later", 1)
		for _, id := range want { // each takes the place of the one that was set before
			d.run("pub", "--after", "0s", "--id", string(id), "later", string(id)).want(t, "pub", 0, "", "")
			if m := c.Receive(); string(m.Payload) != string(id) {
				t.Errorf("%s: got %v, want %c", dir, m, id)
			}
		}
		d.run("timers", "list").want(t, "list", 0, "", "")
	}
}

// A start refuses a damaged directory; what can be read of it is salvaged into another one.
func TestSalvage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, saved, again := filepath.Join(dir, "data"), filepath.Join(dir, "saved"), filepath.Join(dir, "again")
	d := serveIn(t, data)
	d.run("set", "one", "first").want(t, "set", 0, "", "")
	d.run("set", "two", "second").want(t, "set", 0, "", "")
	holdfastAlone(t, "salvage", data, "--data", saved).want(t, "in use", 2, "", "another process has "+data+" open")
	d.Stop()
	holdfastAlone(t, "salvage", data, "--data", saved).want(t, "of what is whole", 0,
		saved+" holds what was salvaged: 2 keys (17 bytes), 0 sessions, 0 subscriptions, 0 queued messages, 0 retained messages, 0 wills\n", "")

	// Given two wrong bytes in the first batch, it alone is lost.
	path := newestLog(t, data)
	flipBit(t, path, func(int) int { return 26 })
	flipBit(t, path, func(int) int { return 28 })
	if code := startIn(t, data).Stop(); code != 2 {
		t.Errorf("serve on what is damaged: status %d", code)
	}
	got := holdfastAlone(t, "salvage", data, "--data", again)
	if got.code != 1 || !strings.HasPrefix(got.out, "lost: "+filepath.Base(path)+", at byte 0: batches 1 to 1 can't be read\n") {
		t.Errorf("salvage: %+v", got)
	}
	if got := holdfastAlone(t, "check", "--data", again); got.code != 0 {
		t.Errorf("check: %+v", got)
	}
	d = serveIn(t, again)
	d.run("get", "two").want(t, "get", 0, "second", "")
	d.run("get", "one").want(t, "get", 1, "", "no such key")
}
