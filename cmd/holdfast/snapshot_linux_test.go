package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/terminal"
)

// screenful is a command in front of a terminal, and what that has shown.
type screenful struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{}

	mu    sync.Mutex
	shown strings.Builder // guarded by mu
}

// beginOnTerminal starts a command in front of a terminal. It is killed with the test, if it has not ended.
func beginOnTerminal(t *testing.T, cmd *exec.Cmd) *screenful {
	t.Helper()
	screen, tty := terminal.Open(t)
	s := &screenful{t: t, cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = tty, tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	go func() {
		defer close(s.ended)
		for chunk := make([]byte, 4096); ; {
			n, err := screen.Read(chunk) // until the command ends, when a terminal reports an error
			s.mu.Lock()
			s.shown.Write(chunk[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-s.ended
		_ = cmd.Wait()
	})
	return s
}

func (s *screenful) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.String()
}

// until waits until what was shown is as wanted.
func (s *screenful) until(what string, is func(text string) bool) {
	s.t.Helper()
	for end := time.Now().Add(2 * patience); !is(s.text()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%v: not in time: %s; it shows %q", s.cmd.Args, what, s.text())
		}
	}
}

// await waits until something that matches was shown, and gives it.
func (s *screenful) await(what *regexp.Regexp) (found []string) {
	s.t.Helper()
	s.until("it shows "+what.String(), func(text string) bool {
		found = what.FindStringSubmatch(text)
		return found != nil
	})
	return found
}

// A node that gets all data for longer than ten seconds says so: its log every ten seconds, a line on its
// terminal until it has them, "cluster status" and, on a terminal, "cluster add".
func TestALongSnapshotIsShown(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out a snapshot of twenty seconds; a run without -short has it")
	}
	// Given a cluster with data that take a while at its rate,
	const values, valueBytes, rate = 40, 256 << 10, "512KiB"
	c := newAwayCluster(t, "a")
	c.flags = func(string) []string { return []string{"--cluster-snapshot-rate", rate} }
	c.startAll("a")
	c.lead("a")
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	writer, err := client.Dial(ctx, c.addrs["a"])
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	for i := range values {
		if _, err := writer.Set(ctx, fmt.Sprintf("key/%d", i), noise(valueBytes)); err != nil {
			t.Fatal(err)
		}
	}

	// when a node is added,
	between, dir := testserver.FreeAddress(), t.TempDir()
	node := beginOnTerminal(t, exec.Command(binary, "serve", "--node", "d", "--listen", testserver.FreeAddress(), "--data", dir, "--cluster-peers", "d="+between+","+c.peers[0]))
	node.await(regexp.MustCompile("waiting until this node is added"))
	add := beginOnTerminal(t, exec.Command(binary, "cluster", "add", "d="+between, "--data", c.dirs["a"]))

	// then all of them show how far it is, more as time passes,
	shown := regexp.MustCompile(`\rgetting all data from the leader: (\d+) of (\d+) MiB \((\d+) %\)\x1b\[K`)
	first := node.await(shown)
	c.until("a", "the status has the share of the data that has arrived", func(r *control.Report) bool {
		line, _ := r.Named("d")
		return line.Role == "receiving" && 0 < line.Received && line.Received < line.ReceiveBytes && line.ReceiveBytes >= values*valueBytes
	})
	add.await(regexp.MustCompile(`\rnode d: receiving \([1-9]\d* %\), \d+ entries behind`))
	logged := node.await(regexp.MustCompile(`level=INFO msg="getting all data from the leader" bytes=(\d+) of=(\d+)\r\n`))
	if logged[1] == "0" || logged[1] == logged[2] {
		t.Errorf("the log has %q", logged[0])
	}
	last := node.await(regexp.MustCompile(`(?s)` + shown.String() + `.*` + shown.String()))
	if first[2] != last[5] || first[1] == last[4] || first[3] == last[6] {
		t.Errorf("first the terminal has %q, and last %q", first[0], last[0])
	}

	// and when the node has everything the line is gone.
	node.await(regexp.MustCompile(`msg="this node has all data of the leader"`))
	add.await(regexp.MustCompile(`node d was added\r\n`))
	node.until("the line about the data is erased", func(text string) bool {
		return strings.LastIndex(text, "\r\x1b[K") > strings.LastIndex(text, "\rgetting all data")
	})
	c.until("a", "the node lacks nothing", func(r *control.Report) bool {
		line, _ := r.Named("d")
		return line.Role == "follower" && line.Lag == 0
	})
}
