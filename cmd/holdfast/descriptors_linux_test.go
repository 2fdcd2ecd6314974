package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mqtttest"
)

// limitedTo starts a server in data that may open only so many files, softly a hundred.
func limitedTo(t *testing.T, files int, data string, flags ...string) *daemon {
	t.Helper()
	script := fmt.Sprintf(`ulimit -S -n 100 && ulimit -H -n %d && exec "$0" "$@"`, files)
	return launch(t, exec.Command("sh", append([]string{"-c", script, binary, "serve", "--listen", "127.0.0.1:0", "--data", data}, flags...)...))
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
		writer := mqtttest.Connect(t, "127.0.0.1:"+d.port)
		crowd := make([]net.Conn, files)
		for i := range crowd { // those beyond the bounds are closed at once
			nc, err := net.Dial("tcp", "127.0.0.1:"+d.port)
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
		case <-d.ended:
			t.Fatalf("the server has ended:\n%s", d.log())
		default:
		}
		if n := strings.Count(d.log(), "\n"); n > 20 {
			t.Errorf("it said %d lines:\n%s", n, d.log())
		}
		writer.Disconnect()
		for _, nc := range crowd {
			nc.Close()
		}
		if round == 0 {
			d.stop(syscall.SIGKILL)
			d = limitedTo(t, files, data, flags...)
			if d.port == "" {
				t.Fatalf("it does not start again:\n%s", d.log())
			}
		}
	}
	d.stop(syscall.SIGTERM)
	if got := holdfastAlone(t, "check", "--data", data); got.code != 0 {
		t.Errorf("check: %+v", got)
	}
}

// awaitOpen waits until the server has at least so many files open.
func awaitOpen(t *testing.T, d *daemon, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
		if err == nil && len(open) >= n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server has %d files open, want %d: %v\n%s", len(open), n, err, d.log())
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
	if d.port != "" || !strings.Contains(d.log(), "raise the limit") {
		t.Errorf("it said:\n%s", d.log())
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
		nc, err := net.Dial("tcp", "127.0.0.1:"+d.port)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	awaitOpen(t, d, 150)
	if got := holdfastAlone(t, "backup", filepath.Join(dir, "backup"), "--data", data); got.code != 0 {
		t.Errorf("backup: %+v\n%s", got, d.log())
	}
}
