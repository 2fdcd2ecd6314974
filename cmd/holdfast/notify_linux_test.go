package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// A service manager is told when the server is ready, around each reading of its
// configuration, and when it shuts down.
func TestServiceManagerIsNotified(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "holdfast.yaml")
	if err := os.WriteFile(config, []byte("max-keys: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, socket := range []string{filepath.Join(dir, "notify"), fmt.Sprintf("@holdfast-test-%d", os.Getpid())} {
		manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer manager.Close()
		next := func() string {
			t.Helper()
			buffer := make([]byte, 4096)
			_ = manager.SetReadDeadline(time.Now().Add(patience))
			n, err := manager.Read(buffer)
			if err != nil {
				t.Fatal(err)
			}
			return string(buffer[:n])
		}
		expect := func(pattern string) {
			t.Helper()
			if got := next(); !regexp.MustCompile("^(?:" + pattern + ")$").MatchString(got) {
				t.Errorf("the service manager was told %q, want %s", got, pattern)
			}
		}
		p := testserver.Launch(t, append([]string{"env", "NOTIFY_SOCKET=" + socket}, testserver.Command(t, "--config", config)...)...)
		expect(`STATUS=reading the data in \S+`)
		ready := `READY=1\nSTATUS=listening on ` + regexp.QuoteMeta(p.Addr)
		expect(ready)
		p.Process.Signal(syscall.SIGHUP)
		expect(`RELOADING=1\nMONOTONIC_USEC=[1-9]\d*`)
		expect(ready)
		if status := p.Stop(); status != 0 {
			t.Errorf("it ended with status %d", status)
		}
		expect("STOPPING=1\nSTATUS=shutting down")
	}
}

// A server whose service manager does not listen serves all the same.
func TestServiceManagerIsGone(t *testing.T) {
	t.Parallel()
	p := testserver.Launch(t, append([]string{"env", "NOTIFY_SOCKET=" + filepath.Join(t.TempDir(), "nothing")}, testserver.Command(t)...)...)
	if p.Addr == "" || p.Stop() != 0 {
		t.Errorf("it said:\n%s", p.Output())
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	holdfastAlone(t, "health", "--data", data).want(t, "no server", 2, "", "no server can be reached through "+data)
	d := serveIn(t, data)
	holdfastAlone(t, "health", "--data", data).want(t, "a server", 0, "ready\n", "")
	d.Kill()
	holdfastAlone(t, "health", "--data", data).want(t, "a killed server", 2, "", "no server can be reached")

	// Given something that takes the question, and never answers.
	deaf := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(deaf, datadir.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	holdfastAlone(t, "health", "--data", deaf, "--timeout", "50ms").want(t, "no answer", 2, "", "the server has not answered within 50ms")
	if r := holdfastAlone(t, "health", "--timeout", "0s"); r.code != 2 || !strings.Contains(r.err, "want a duration") {
		t.Errorf("--timeout 0s: %+v", r)
	}
}
