package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/backup"
	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

func noProgress(backup.Progress) {}

func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, copied, restored := filepath.Join(dir, "data"), filepath.Join(dir, "deep", "backup"), filepath.Join(dir, "restored")
	s := startIn(t, data)
	fill(t, s.Addrs()[0].String())
	if err := s.journal.Flush(); err != nil { // some of it is in tables
		t.Fatal(err)
	}

	// Given a server at work, when it is asked for a backup,
	stop := make(chan struct{})
	var acked int
	var wg sync.WaitGroup
	busy := mqtttest.Connect(t, s.Addrs()[0].String())
	wg.Go(func() {
		for ; ; acked++ {
			select {
			case <-stop:
				return
			default:
				busy.Publish(mqtttest.Message{Topic: fmt.Sprintf("busy/%d", acked), Payload: "x", QoS: 1, Retain: true})
			}
		}
	})
	done, err := Backup(context.Background(), data, copied, false, noProgress)
	close(stop)
	wg.Wait()
	if err != nil || done.Files < 4 || done.Bytes == 0 {
		t.Fatalf("Backup: %+v, %v", done, err)
	}

	// then what was acknowledged before is in it, and restoring gives a server that has it.
	report, _, err := Restore(copied, restored, noProgress, nil)
	if err != nil {
		t.Fatal(err)
	}
	retained := report.Broker.Retained
	report.Broker.Retained = 2
	if report.String() != filledWith || retained < 2 || retained > acked+2 {
		t.Errorf("restored %s with %d retained, want %s", report, retained, filledWith)
	}
	again := startIn(t, restored)
	one := mqtttest.Connect(t, again.Addrs()[0].String(), mqtttest.Persistent("one"))
	if got := mqtttest.Payloads(one.ReceiveN(3)); strings.Join(got, ", ") != "in two queues, in one, in one" {
		t.Errorf("the subscriber got %q", got)
	}
	if again.Keys() != 5 {
		t.Errorf("%d keys", again.Keys())
	}
}

func TestBackupRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, full := filepath.Join(dir, "data"), filepath.Join(dir, "full")
	if err := os.MkdirAll(full, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(full, "thesis.doc"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Backup(context.Background(), data, filepath.Join(dir, "b"), false, noProgress); !errors.Is(err, ErrNotRunning) {
		t.Errorf("with no server: %v", err)
	}
	s := startIn(t, data)
	if _, err := Backup(context.Background(), data, full, false, noProgress); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("into a full directory: %v", err)
	}
	if _, _, err := Restore(data, filepath.Join(dir, "new"), noProgress, nil); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("restoring a running server's directory: %v", err)
	}
	copied := filepath.Join(dir, "copied")
	if _, err := Backup(context.Background(), data, copied, false, noProgress); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(Config{Listen: []string{"127.0.0.1:0"}, DataDir: copied}); !errors.Is(err, journal.ErrBackup) || !strings.Contains(err.Error(), "holdfast restore "+copied+" --data NEW") {
		t.Errorf("starting on a backup: %v", err)
	}
	stop(t, s)
	if _, _, err := Restore(data, filepath.Join(dir, "new"), noProgress, nil); err == nil || !strings.Contains(err.Error(), "not a backup") {
		t.Errorf("restoring a stopped server's directory: %v", err)
	}
	if _, _, err := Restore(copied, full, noProgress, nil); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("restoring into a full directory: %v", err)
	}
	if _, _, err := Restore(full, filepath.Join(dir, "new"), noProgress, nil); err == nil || !strings.Contains(err.Error(), "not a backup") {
		t.Errorf("restoring what is no backup: %v", err)
	}
}

func TestADamagedBackupIsNotRestored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, copied, restored := filepath.Join(dir, "data"), filepath.Join(dir, "backup"), filepath.Join(dir, "restored")
	s := startIn(t, data)
	fill(t, s.Addrs()[0].String())
	if _, err := Backup(context.Background(), data, copied, false, noProgress); err != nil {
		t.Fatal(err)
	}
	tables, _ := filepath.Glob(filepath.Join(copied, "*.sst"))
	content, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(tables[0], content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = Restore(copied, restored, noProgress, nil)
	if err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(filepath.Base(tables[0]), ".sst")) || !strings.Contains(err.Error(), "nothing was restored") {
		t.Errorf("Restore: %v", err)
	}
	if files, _ := os.ReadDir(restored); len(files) != 0 {
		t.Errorf("it has left %v", files)
	}
}

func TestControlSocket(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	path := filepath.Join(data, datadir.SocketName)
	stop(t, startIn(t, data))
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a stopped server leaves its socket: %v", err)
	}

	// One that a killed server has left is replaced, and only the owner may use it.
	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()
	if _, err := Backup(context.Background(), data, filepath.Join(data, "b"), false, noProgress); !errors.Is(err, ErrNotRunning) {
		t.Errorf("through a stale socket: %v", err)
	}
	s := startIn(t, data)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info, err)
	}
	stop(t, s)

	// Where its path would be too long there is a warning in its place.
	var log bytes.Buffer
	long := filepath.Join(data, strings.Repeat("long/", 20))
	stop(t, startIn(t, long, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) }))
	if !strings.Contains(log.String(), "no control socket") || !strings.Contains(log.String(), "shorter path") {
		t.Errorf("it said:\n%s", log.String())
	}
}
