package soak

import (
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// A short run: a hundred clients whose connections last a second. It finds what leaks
// with every connection; what grows slowly is for the hour.
func TestClientsComeAndGo(t *testing.T) {
	t.Parallel()
	binary, err := process.Build(t.TempDir(), process.Holdfast)
	if err != nil {
		t.Fatal(err)
	}
	report, err := Run(t.Context(), Options{
		Binary: binary, Dir: t.TempDir(), For: 8 * time.Second, Clients: 100, Life: time.Second,
		Pause: 20 * time.Millisecond, Sample: time.Second, Seed: 1, Log: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
	for _, problem := range report.Problems {
		t.Error(problem)
	}
	if report.After.Lives < 100 || report.After.Operations < 100 {
		t.Errorf("%d connections and %d operations are no load", report.After.Lives, report.After.Operations)
	}
}
