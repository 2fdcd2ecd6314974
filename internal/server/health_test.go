package server

import (
	"slices"
	"testing"
)

// Health gives the reasons of /readyz, and an error once the server has ended.
func TestHealth(t *testing.T) {
	t.Parallel()
	cfg := Default()
	cfg.Listen, cfg.DataDir = []string{"127.0.0.1:0"}, t.TempDir()
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for phase, want := range map[string][]string{"": nil, "sessions are being read": {"sessions are being read"}} {
		s.setPhase(phase)
		if unready, err := Health(t.Context(), cfg.DataDir); err != nil || !slices.Equal(unready, want) {
			t.Errorf("in phase %q: %q, %v", phase, unready, err)
		}
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if unready, err := Health(t.Context(), cfg.DataDir); err == nil {
		t.Errorf("of a stopped server: %q, and no error", unready)
	}
}
