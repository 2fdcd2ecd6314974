package crashtest

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the runs; 0: one of the clock")
	forFlag  = flag.Duration("for", 0, "how long each run takes; 0: linearizability 15s, crashes 30s, each a tenth of it with -short")
)

func TestMain(m *testing.M) { testserver.Main(m) }

func duration(usual time.Duration) time.Duration {
	switch {
	case *forFlag > 0:
		return *forFlag
	case testing.Short():
		return usual / 10
	}
	return usual
}

// runFor runs the harness, and says how to do it again.
func runFor(t *testing.T, o Options) *Summary {
	t.Helper()
	o.Dir, o.Seed = t.TempDir(), harness.Seed(*seedFlag)
	if o.Program.Name == "" {
		o.Program = harness.Holdfast(testserver.Binary())
	}
	ctx, cancel := context.WithTimeout(t.Context(), o.For+8*time.Minute) // of a run that never has enough
	defer cancel()
	summary, err := Run(ctx, o)
	if err != nil {
		t.Fatalf("seed %d: %v", o.Seed, err)
	}
	t.Logf("%v", summary)
	if o.Enough != nil && !summary.Failed() && !o.Enough(summary) {
		t.Errorf("the run has proved little")
	}
	return summary
}

// mustHold fails the test if a promise was broken.
func mustHold(t *testing.T, s *Summary) {
	t.Helper()
	if s.Failed() {
		t.Errorf("promises broken; to run it again: go test ./internal/crashtest -run '%s' -seed %d", t.Name(), s.Seed)
	}
}
