package server

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/doctor"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
)

// wantFinding fails unless a check has found something of this level that says so.
func wantFinding(t *testing.T, all []doctor.Finding, check string, level doctor.Level, says string) {
	t.Helper()
	for _, f := range all {
		if f.Check == check && f.Level == level && strings.Contains(f.Found, says) {
			return
		}
	}
	t.Errorf("no finding %s %s with %q among %+v", level, check, says, all)
}

// A running server examines itself, with the fill of its bounds.
func TestDoctorOfARunningServer(t *testing.T) {
	t.Parallel()
	cfg := Default()
	cfg.Listen, cfg.DataDir = []string{"127.0.0.1:0"}, t.TempDir()
	cfg.Limits.MaxSessions = 1
	if _, err := Doctor(t.Context(), cfg.DataDir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("before the start: %v", err)
	}
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown(t.Context())
	all, err := Doctor(t.Context(), cfg.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, all, "server", doctor.OK, "serves clients")
	wantFinding(t, all, doctor.Bounds, doctor.OK, "sessions, connected and away: 0 % of 1")
	wantFinding(t, all, doctor.Bounds, doctor.OK, "keys in the store: 0 % of")
	for _, check := range []string{"descriptors", "clock", "fsync", "memory"} {
		found := false
		for _, f := range all {
			found = found || f.Check == check
		}
		if !found {
			t.Errorf("%s was not examined: %+v", check, all)
		}
	}

	for _, f := range all {
		if f.Check == "bridges" {
			t.Errorf("there is no bridge: %+v", f)
		}
	}

	s.setPhase("sessions are being read")
	all, err = Doctor(t.Context(), cfg.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, all, "server", doctor.Problem, "sessions are being read")
}

// Without a server, the machine is examined for one: nothing is made in place of a data
// directory that does not exist.
func TestDoctorBeforeAStart(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	authority := certstest.New(t)
	files := authority.Server("localhost")
	above := t.TempDir()
	cfg := Default()
	cfg.DataDir = filepath.Join(above, "not", "yet")
	cfg.Listen = []string{taken.Addr().String(), "mqtts://127.0.0.1:0"}
	cfg.TLS = files
	cfg.MaxMemory = 1 << 60
	all := cfg.Examine(false)
	wantFinding(t, all, "listeners", doctor.Problem, taken.Addr().String())
	wantFinding(t, all, "listeners", doctor.OK, "127.0.0.1:0")
	wantFinding(t, all, "memory", doctor.Problem, "takes at most")
	wantFinding(t, all, "certificates", doctor.OK, files.Cert)
	if left, _ := filepath.Glob(filepath.Join(above, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	cfg.TLS.Cert, cfg.DataDir = filepath.Join(above, "none.crt"), files.Key
	all = cfg.Examine(false)
	wantFinding(t, all, "certificates", doctor.Problem, "none.crt")
	wantFinding(t, all, "disk", doctor.Problem, fmt.Sprintf("%s is not a directory", files.Key))

	cfg.DataDir, cfg.DiskReserve = above, 1<<60
	wantFinding(t, cfg.Examine(false), "disk", doctor.Problem, "--disk-reserve is")

	cfg.TLS, cfg.Listen = certs.Files{}, cfg.Listen[:1]
	cfg.Cluster.Cert, cfg.Cluster.Key, cfg.Cluster.CA = files.Cert, files.Key, authority.File("ca.crt")
	all = cfg.Examine(true)
	wantFinding(t, all, "certificates", doctor.OK, files.Cert)
	for _, f := range all {
		if f.Check == "listeners" {
			t.Errorf("of a node that runs: %+v", f)
		}
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	h := histogram.New(1000)
	if median, longest, count := quantiles(h.Read()); median != 0 || longest != 0 || count != 0 {
		t.Errorf("of nothing: %v, %v of %d", median, longest, count)
	}
	for range 9 {
		h.Observe(3000)
	}
	h.Observe(int64(time.Hour))
	median, longest, count := quantiles(h.Read())
	if median != 4*time.Microsecond || longest < 30*time.Second || count != 10 {
		t.Errorf("%v, %v of %d", median, longest, count)
	}
}
