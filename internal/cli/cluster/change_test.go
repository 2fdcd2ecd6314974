package cluster

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/clustered/clusteredtest"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
)

// What can be no node is refused before a node is asked.
func TestAddWithABadNode(t *testing.T) {
	t.Parallel()
	for argument, want := range map[string]string{
		"d":               `"d": want NAME=HOST:PORT, with a name`,
		"=127.0.0.1:7004": `want NAME=HOST:PORT, with a name`,
		"d e=127.0.0.1:7": `want NAME=HOST:PORT, with a name`,
		"d=":              `want HOST:PORT`,
		"d=127.0.0.1":     `want HOST:PORT`,
		"d=127.0.0.1:0":   `the port "0": want 1 to 65535`,
		"d=0.0.0.0:7004":  `it names no host`,
	} {
		cmd := NewCommand()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"add", argument, "--data", t.TempDir()})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", argument, err, want)
		}
	}
}

// Without a leader a change waits for one, and says so.
func TestAChangeSaysThatItWaitsForALeader(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	data := t.TempDir()
	nodes := clusteredtest.Start(ctx, t, []string{"a=" + unusedAddress(t), "b=" + unusedAddress(t)},
		clusteredtest.Node{Name: "a", Dir: data, Listen: "127.0.0.1:0"}, clusteredtest.Node{Name: "b", Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err := nodes["b"].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	for {
		report, err := control.Status(ctx, data)
		if err != nil {
			t.Fatal(err)
		}
		if report.Leader == "" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, args := range [][]string{{"add", "c=127.0.0.1:7003"}, {"remove", "b"}} {
		running, interrupt := context.WithCancel(ctx)
		stderr := &lines{interrupt: interrupt}
		cmd := NewCommand()
		cmd.SetOut(io.Discard)
		cmd.SetErr(stderr)
		cmd.SetArgs(append(args, "--data", data))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(running); err == nil {
			t.Errorf("%v: it was done without a quorum", args)
		}
		if got := stderr.text.String(); !strings.Contains(got, "the cluster has no leader; waiting for one, up to 30s") {
			t.Errorf("%v: it said %q", args, got)
		}
	}
}

// lines is where a command writes, which is interrupted when it has.
type lines struct {
	interrupt func()
	text      strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	defer l.interrupt()
	return l.text.Write(b)
}
