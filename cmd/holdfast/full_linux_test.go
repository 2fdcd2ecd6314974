package main

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// smallDisk is a file system of its own with this much room.
func smallDisk(t *testing.T, megabytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", megabytes)); err != nil {
		t.Skipf("only root may mount the small file system that this test fills: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// On a full disk the server refuses writes, goes on with everything else, and
// accepts them again when there is room. It can also be started on one.
func TestAFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out what writes 128 MB to a file system of its own; a run without -short has it")
	}
	disk := smallDisk(t, 128)
	data := filepath.Join(disk, "data")
	d := serveIn(t, data)
	value := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(value, noise(1<<20), 0o600); err != nil {
		t.Fatal(err)
	}

	// Given timers, of which some may become due while the disk is full,
	timers := []string{"100ms", "1s", "2s", "4s", "8s"}
	away := mqtttest.Connect(t, d.Addr, mqtttest.Persistent("away"))
	away.Subscribe("due", 2)
	away.Disconnect()
	for _, after := range timers {
		d.run("pub", "-q", "2", "--after", after, "--id", after, "due", after).want(t, "pub", 0, "", "")
	}
	const transaction = `{"then": [{"set": "txn", "value": "done"}], "once": {"key": "txn", "message_id": "1"}, "publish": [{"topic": "due", "payload": "at once", "qos": 2},
		{"topic": "due", "payload": "later", "qos": 2, "user": [["holdfast-deliver-after", "1"]]}]}`

	// and as much as goes in,
	keys := 0
	for ; keys < 2000; keys++ {
		got := d.run("set", fmt.Sprint("key/", keys), "-f", value)
		if got.code != 0 {
			if !strings.Contains(got.err, "the quota has been exceeded") {
				t.Fatalf("with %d keys: %+v\n%s", keys, got, d.Output())
			}
			break
		}
	}
	// and the rest of the disk filled by another program, with what the server gives
	// back as long as it still moves rows from its log to tables, writes are refused,
	rest := filepath.Join(disk, "other")
	for deadline := time.Now().Add(patience); ; {
		fillUp(t, rest)
		got := d.run("set", "small", "x")
		if got.code != 0 {
			got.want(t, "set", 2, "", "the quota has been exceeded")
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it takes writes on a full disk; it said:\n%s", d.Output())
		}
	}

	// reading and deleting go on,
	if got := d.run("get", "key/0"); got.code != 0 || len(got.out) != 1<<20 {
		t.Errorf("get: status %d, %d bytes, %s", got.code, len(got.out), got.err)
	}
	d.run("del", "key/0").want(t, "del", 0, "", "")
	fillUp(t, rest)
	d.runWith(strings.NewReader(transaction), "txn", "-").want(t, "txn", 2, "", "the quota has been exceeded")

	// also over a restart on the full disk,
	d.Kill()
	fillUp(t, rest)
	d = serveIn(t, data)
	if got := d.run("get", "key/1"); got.code != 0 || len(got.out) != 1<<20 {
		t.Errorf("get after a restart: status %d, %d bytes, %s", got.code, len(got.out), got.err)
	}

	// and with room again writes are taken.
	if err := os.Remove(rest); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < keys; i++ {
		d.run("del", fmt.Sprint("key/", i))
	}
	// Of the room tables that are merged may take some once more, and then a transaction is
	// done, once,
	for deadline := time.Now().Add(patience); ; {
		got := d.runWith(strings.NewReader(transaction), "txn", "-")
		if got.code == 0 {
			break
		}
		got.want(t, "txn", 2, "", "the quota has been exceeded")
		if time.Now().After(deadline) {
			t.Fatalf("it refuses writes for ever; it said:\n%s", d.Output())
		}
	}
	d.runWith(strings.NewReader(transaction), "txn", "-").want(t, "txn", 0, "", "")
	// and each timer is delivered, once.
	want := append(timers, "at once", "later")
	away = mqtttest.Connect(t, d.Addr, mqtttest.Persistent("away"), mqtttest.Resume())
	got := mqtttest.Payloads(away.ReceiveN(len(want)))
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("delivered: %q, want %q", got, want)
	}
	d.run("timers", "list").want(t, "timers", 0, "", "")
	away.Quiet()
	d.Stop()
	if got := holdfastAlone(t, "check", "--data", data); got.code != 0 {
		t.Errorf("check: %+v", got)
	}
}

// A node of a cluster can be killed and started on a full disk, as a server by itself.
func TestANodeStartsOnAFullDisk(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 128)
	c := newAwayCluster(t, "a")
	c.dirs["a"] = filepath.Join(disk, "data")
	c.startAll("a")
	c.lead("a")
	_, port, _ := net.SplitHostPort(c.addrs["a"])
	start(t, exec.Command(binary, "set", "-p", port, "key", "value"), nil).want(t, "set", 0, "", "")
	awaitSize(t, filepath.Join(c.dirs["a"], datadir.StartBallastName), 4<<20)
	awaitSize(t, filepath.Join(c.dirs["a"], datadir.BallastName), 16<<20) // a kill may come while it is written
	for range 2 {                                                         // also when the start before has used some of what is kept
		c.running["a"].Kill()
		fillUp(t, filepath.Join(disk, "other"))
		c.startAll("a")
		c.lead("a")
		start(t, exec.Command(binary, "get", "-p", port, "key"), nil).want(t, "get on a full disk", 0, "value", "")
	}
}

// awaitSize waits until a file is as large as that, in bytes.
func awaitSize(t *testing.T, name string, bytes int64) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if info, err := os.Stat(name); err == nil && info.Size() == bytes {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not have %d bytes after a minute", name, bytes)
		}
	}
}

// noise is bytes that cannot be compressed.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// fillUp appends to a file until the disk is full.
func fillUp(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := make([]byte, 1<<16); ; {
		if _, err := f.Write(chunk); err != nil {
			return
		}
	}
}
