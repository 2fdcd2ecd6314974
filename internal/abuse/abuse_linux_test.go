package abuse_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/abuse"
	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

var (
	binary string // the program, built once
	dir    string // for data; its path is short, as that of a socket must be
)

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	tmp, remove, err := harness.TempDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer remove()
	dir, binary = tmp, os.Getenv(binaryVariable)
	if binary == "" { // outside of a network of our own, which has no way to a module proxy
		if binary, err = process.Build(dir, process.Holdfast); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	status, ran, err := abuse.OwnNetwork(binaryVariable + "=" + binary)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	case ran:
		return status
	}
	return m.Run()
}

// binaryVariable tells the tests that run in a network of their own where the
// program is.
const binaryVariable = "HOLDFAST_ABUSE_BINARY"

// ceiling is how many MiB a server may take before it is killed.
const ceiling = 2 << 10

// Each attack, at small size, on a server with small bounds: it must leave the
// others alone.
func TestAttacks(t *testing.T) {
	t.Parallel()
	for _, a := range abuse.Attacks() {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			r, err := abuse.Run(t.Context(), a, abuse.Options{Binary: binary, Size: abuse.Small, Ceiling: ceiling, Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			for _, broken := range r.Broken {
				t.Error(broken)
			}
		})
	}
}

func find(t *testing.T, name string) *abuse.Attack {
	t.Helper()
	for _, a := range abuse.Attacks() {
		if a.Name == name {
			return a
		}
	}
	t.Fatalf("there is no attack named %q", name)
	return nil
}

// A server that is not what an attack wants it to be is found out.
func TestWhatDoesNotHoldIsReported(t *testing.T) {
	t.Parallel()
	a := *find(t, "everything retained")
	a.Ceiling[abuse.Small], a.Longest[abuse.Small] = 1, 1e-6
	a.Prepare = nil
	a.Launch = func(t *abuse.Target) error { return fmt.Errorf("the attacker stumbled") }
	r, err := abuse.Run(t.Context(), &a, abuse.Options{Binary: binary, Size: abuse.Small, Ceiling: ceiling, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(r.Broken, "\n")
	for _, want := range []string{"were resident, more than 1", "a round trip of the bystander took", "the attacker stumbled"} {
		if !strings.Contains(got, want) {
			t.Errorf("reported was\n%s\nwithout %q", got, want)
		}
	}
}

// A run that is interrupted during an attack has no result, so none is recorded.
func TestAnInterruptedAttackHasNoResult(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	a := *find(t, "fields at their bounds and above")
	a.Launch = func(*abuse.Target) error {
		interrupt()
		return nil
	}
	r, err := abuse.Run(ctx, &a, abuse.Options{Binary: binary, Size: abuse.Small, Ceiling: ceiling, Dir: dir})
	if !errors.Is(err, context.Canceled) || r != nil {
		t.Errorf("the result is %v, the error %v", r, err)
	}
}

// A server that takes too much memory is killed before the machine suffers.
func TestAServerAtTheCeilingIsKilled(t *testing.T) {
	t.Parallel()
	r, err := abuse.Run(t.Context(), find(t, "fields at their bounds and above"), abuse.Options{Binary: binary, Size: abuse.Small, Ceiling: 1, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if r.Ended != "killed at 1 MiB" || len(r.Broken) == 0 {
		t.Errorf("it ended with %q, and did not hold: %q", r.Ended, r.Broken)
	}
}
