package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// limitedTo starts a server in data that may open only so many files, softly a hundred.
func limitedTo(t *testing.T, files int, data string, flags ...string) *daemon {
	t.Helper()
	script := fmt.Sprintf(`ulimit -S -n 100 && ulimit -H -n %d && exec "$0" "$@"`, files)
	command := testserver.Command(t, append(flags, "--data", data)...)
	return &daemon{testserver.Launch(t, append([]string{"sh", "-c", script}, command...)...), t}
}

// Idle connections up to the limit of open files don't keep the log from its next
// segments, nor tables from being written, merged and read; and a restart works as well.
func TestIdleConnectionsUpToTheLimitOfOpenFiles(t *testing.T) {
	t.Parallel()
	const files = 300
	data := filepath.Join(t.TempDir(), "data")
	flags := []string{"--connect-timeout", "1h", "--disk-reserve", "12MiB"} // so small that segments and memtables are
	d := limitedTo(t, files, data, flags...)
	if got, err := strconv.Atoi(d.sys("broker/descriptors/maximum")); err != nil || got < files-1 {
		t.Errorf("the soft limit was not raised: %d, %v", got, err)
	}
	value := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(value, noise(1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		writer := mqtttest.Connect(t, d.Addr)
		crowd := make([]net.Conn, files)
		for i := range crowd { // those beyond the bounds are closed at once
			nc, err := net.Dial("tcp", d.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			crowd[i] = nc
		}
		awaitOpen(t, d, files/2)
		before := newestSegment(t, data)
		for i := range 24 { // MiB
			writer.Publish(mqtttest.Message{Topic: fmt.Sprint("kept/", round, "/", i), Payload: string(noise(1 << 20)), QoS: 1, Retain: true})
		}
		if after := newestSegment(t, data); after < before+8 {
			t.Errorf("the log went from %x to %x only", before, after)
		}
		if tables, _ := filepath.Glob(filepath.Join(data, "*.sst")); len(tables) == 0 {
			t.Error("there are no tables")
		}
		select {
		case <-d.Ended():
			t.Fatalf("the server has ended:\n%s", d.Output())
		default:
		}
		if n := strings.Count(d.Output(), "\n"); n > 20 {
			t.Errorf("it said %d lines:\n%s", n, d.Output())
		}
		writer.Disconnect()
		for _, nc := range crowd {
			nc.Close()
		}
		if round == 0 {
			d.Kill()
			d = limitedTo(t, files, data, flags...)
			if d.Addr == "" {
				t.Fatalf("it does not start again:\n%s", d.Output())
			}
		}
	}
	d.Stop()
	if got := holdfastAlone(t, "check", "--data", data); got.code != 0 {
		t.Errorf("check: %+v", got)
	}
}

// awaitOpen waits until the server has at least so many files open.
func awaitOpen(t *testing.T, d *daemon, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.ID()))
		if err == nil && len(open) >= n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server has %d files open, want %d: %v\n%s", len(open), n, err, d.Output())
		}
	}
}

// newestSegment is the number of the first batch in the newest segment of the log.
func newestSegment(t *testing.T, data string) (number uint64) {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(data, "*.journal"))
	for _, name := range names {
		text := strings.TrimSuffix(filepath.Base(name), ".journal")
		if n, err := strconv.ParseUint(text, 16, 64); err == nil {
			number = max(number, n)
		}
	}
	return number
}

// A process that may open too few files says so in place of failing later.
func TestTooFewOpenFiles(t *testing.T) {
	t.Parallel()
	d := limitedTo(t, 120, filepath.Join(t.TempDir(), "data"))
	if d.Addr != "" || !strings.Contains(d.Output(), "raise the limit") {
		t.Errorf("it said:\n%s", d.Output())
	}
}

// While others hold every connection there may be, an operator gets in, through the
// control socket and over MQTT.
func TestAnOperatorGetsInAtTheLimitOfOpenFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	d := limitedTo(t, 300, data, "--connect-timeout", "1h")
	for range 400 {
		nc, err := net.Dial("tcp", d.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	awaitOpen(t, d, 150)
	if got := holdfastAlone(t, "backup", filepath.Join(dir, "backup"), "--data", data); got.code != 0 {
		t.Errorf("backup: %+v\n%s", got, d.Output())
	}
}

// A reload while no descriptor is left keeps what is in force and says so; once there are
// descriptors again, the file is read without another signal or change.
func TestReloadWithoutDescriptors(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	put := func(topics string) {
		t.Helper()
		text := "rules: [{brokerResources: [{method: Connect}, {method: Publish, topics: [" + topics + "]}]}]\n"
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	put("old")
	p := testserver.Run(t, "--policy", file)
	c := mqtttest.Connect(t, p.Addr)
	c.Publish(mqtttest.Message{Topic: "old", QoS: 1})
	await := func(text string) {
		t.Helper()
		for deadline := time.Now().Add(patience); !strings.Contains(p.Output(), text); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the server does not say %q, but\n%s", text, p.Output())
			}
		}
	}

	// Given a server that may open no file more, and another policy.
	var before unix.Rlimit
	if err := unix.Prlimit(p.ID(), unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(p.ID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}, nil); err != nil {
		t.Fatal(err)
	}
	put("old, new")
	p.Signal(syscall.SIGHUP)
	await("keeping the old policy: the new one cannot be used")
	await("too many open files")
	c.Publish(mqtttest.Message{Topic: "old", QoS: 1})
	if ack := c.Offer(mqtttest.Message{Topic: "new", QoS: 1}); ack.Code != mqtt.NotAuthorized {
		t.Errorf("the policy that could not be read allows: %v", ack.Code)
	}

	// When there are descriptors again, then it comes into force.
	if err := unix.Prlimit(p.ID(), unix.RLIMIT_NOFILE, &before, nil); err != nil {
		t.Fatal(err)
	}
	await("the policy was read again")
	c.Publish(mqtttest.Message{Topic: "new", QoS: 1})
	if n := strings.Count(p.Output(), "keeping the old policy"); n != 1 {
		t.Errorf("it says %d times that it keeps the old policy:\n%s", n, p.Output())
	}
}
