package faultrun

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// brokerVariable is set in the environment of a process that is to be a run until a signal.
const brokerVariable = "HOLDFAST_FAULTRUN_BROKER"

// TestRunUntilSignal is the run that TestSIGTERMEndsAllProcesses ends.
func TestRunUntilSignal(t *testing.T) {
	binary := os.Getenv(brokerVariable)
	if binary == "" {
		t.Skip("it is a process of TestSIGTERMEndsAllProcesses")
	}
	ctx, stop := harness.UntilSignal()
	defer stop()
	fmt.Println("the run begins")
	_, err := Run(ctx, Options{Dir: t.TempDir(), Broker: binary, Seed: 1, Messages: 1_000_000})
	fmt.Println("the run has ended:", err)
}

// A run that gets SIGTERM leaves none of its processes behind: neither the broker nor an instance.
func TestSIGTERMEndsAllProcesses(t *testing.T) {
	t.Parallel()
	p, _, err := process.StartTest("TestRunUntilSignal", regexp.MustCompile("the run begins"), brokerVariable+"="+testserver.Binary())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	const processes = 1 + 3 // the broker and the instances
	started := children(t, p.ID())
	for deadline := time.Now().Add(process.Patience); len(started) < processes; started = children(t, p.ID()) {
		if time.Now().After(deadline) || !p.Running() {
			t.Fatalf("the run has %d processes, want %d: %s", len(started), processes, p.Output())
		}
		time.Sleep(time.Millisecond)
	}
	defer func() {
		for _, id := range started {
			if isThere(id) {
				_ = syscall.Kill(id, syscall.SIGKILL)
			}
		}
	}()
	if !p.Stop(process.Patience) {
		t.Errorf("the run does not end: %s", p.Output())
	}
	for _, id := range started {
		if isThere(id) {
			t.Errorf("the process %d is left behind", id)
		}
	}
}

// children are the processes that a process has started.
func children(t *testing.T, parent int) (ids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(stat), ") ") // behind the name: state, parent
		if words := strings.Fields(rest); len(words) > 1 && words[1] == strconv.Itoa(parent) {
			id, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			ids = append(ids, id)
		}
	}
	return ids
}

func isThere(id int) bool { return syscall.Kill(id, 0) == nil }
