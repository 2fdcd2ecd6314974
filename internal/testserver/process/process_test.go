package process

import (
	"net"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

func start(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(exec.Command("sh", "-c", script), regexp.MustCompile(`^ready`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	return p
}

func TestReadyAndStopped(t *testing.T) {
	t.Parallel()
	p := start(t, `trap "exit 7" TERM; echo first; echo ready >&2; while :; do sleep 0.01; done`)
	if err := p.AwaitReady(); err != nil || p.Output() != "first\nready\n" || p.Lines() != 2 || !p.Running() {
		t.Errorf("ready: %v, %d lines: %q", err, p.Lines(), p.Output())
	}
	if !p.Stop(Patience) || p.State().ExitCode() != 7 || p.Running() {
		t.Errorf("stopped: %v", p.State())
	}
	if p.Kill() {
		t.Error("what had ended was killed")
	}
}

func TestEndedBeforeItWasReady(t *testing.T) {
	t.Parallel()
	err := start(t, "echo not today; exit 3").AwaitReady()
	if err == nil || !strings.Contains(err.Error(), "exit status 3; its output:\nnot today\n") {
		t.Errorf("error %v", err)
	}
}

func TestWhatIgnoresSIGTERMIsKilled(t *testing.T) {
	t.Parallel()
	p := start(t, `trap "" TERM; echo ready; while :; do sleep 0.01; done`)
	if err := p.AwaitReady(); err != nil {
		t.Fatal(err)
	}
	if p.Stop(10*time.Millisecond) || p.Running() {
		t.Error("it stopped in time")
	}
}

// Of a long output the last lines are kept, and all are counted.
func TestLongOutput(t *testing.T) {
	t.Parallel()
	p := start(t, `i=0; while [ $i -le 1000 ]; do echo line $i; i=$((i+1)); done; printf end`)
	<-p.Ended()
	if out := p.Output(); p.Lines() != tailLines+2 || !strings.HasPrefix(out, "line 2\n") || !strings.HasSuffix(out, "line 1000\nend") {
		t.Errorf("%d lines: %.20q…", p.Lines(), out)
	}
}

// An address is given once, although its port is free for a server.
func TestFreeAddressIsGivenOnce(t *testing.T) {
	t.Parallel()
	next := 0
	fromTheFirst := func(int) int { next++; return next - 1 }
	one, err := FreeAddress(fromTheFirst)
	if err != nil {
		t.Fatal(err)
	}
	next = 0
	two, err := FreeAddress(fromTheFirst)
	if err != nil || two == one {
		t.Errorf("%s after %s: %v", two, one, err)
	}
	l, err := net.Listen("tcp", one)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

// A process that is forked while FreeAddress tries an address must not keep it in use.
func TestFreeAddressIsFreeWhileProcessesStart(t *testing.T) {
	t.Parallel()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = exec.Command("true").Run()
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	for range 300 {
		addr, err := UnusedAddress()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
}
