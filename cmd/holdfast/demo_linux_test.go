package main

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// The nodes of a demo end with it, also when its terminal is closed or when it is killed, and until then no other
// demo uses their directory.
func TestNodesOfADemoEndWithIt(t *testing.T) {
	t.Parallel()
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP) // what runs the tests may ignore it, and so would the demo
	t.Cleanup(func() { signal.Stop(caught) })
	for name, sent := range map[string]syscall.Signal{"terminal closed": syscall.SIGHUP, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			demo, err := process.Start(exec.Command(binary, "demo-cluster", "--port", "0", "--data", dir), regexp.MustCompile("^Ctrl-C"))
			if err != nil {
				t.Fatal(err)
			}
			defer demo.Kill()
			if err := demo.AwaitReady(); err != nil {
				t.Fatal(err)
			}
			start(t, exec.Command(binary, "demo-cluster", "--port", "0", "--data", dir), nil).
				want(t, "another demo with the directory", 2, "", "a node runs on "+filepath.Join(dir, "a")+": stop it")
			if err := syscall.Kill(demo.ID(), sent); err != nil {
				t.Fatal(err)
			}
			end := time.Now().Add(patience)
			runs := func() bool { // a demo whose terminal was closed waits for its nodes
				for _, node := range []string{"a", "b", "c"} {
					if _, err := control.Status(context.Background(), filepath.Join(dir, node)); err == nil {
						return true
					}
				}
				return sent == syscall.SIGHUP && !strings.HasSuffix(demo.Output(), "stopped\n")
			}
			for runs() {
				if time.Now().After(end) {
					t.Fatalf("the nodes run on:\n%s", demo.Output())
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
}
