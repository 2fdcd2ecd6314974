//go:build lockrank

package server

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/webhook"
)

func armLock(defect string) {
	if slices.Contains(lockrank.LockNames(), defect) {
		lockrank.PanicUnder(defect)
	}
}

// provoke makes the server acquire a lock that it needs near a bound only.
func provoke(cfg *Config, lock string) {
	switch {
	case lock == "routing.Router.fairMu":
		cfg.Limits.MaxQueuedBytes, cfg.Limits.MaxTotalQueuedBytes = 64<<10, 64<<10
	case lock == "principals.Rates.mu":
		cfg.May = limited{}
	case lock == "audit.file.mu":
		cfg.AuditLog = cfg.DataDir + ".audit"
	case lock == "bridge.output.mu":
		far := Default()
		far.Listen, far.DataDir = []string{"127.0.0.1:0"}, cfg.DataDir+".far"
		other, err := Start(far)
		if err != nil {
			panic(err)
		}
		cfg.Bridges = []bridge.Config{{Name: "far", URL: "mqtt://" + other.Addrs()[0].String(), Topics: []bridge.Topic{{Filter: "#", Out: true, QoS: 1}}}}
	case strings.HasPrefix(lock, "webhook."):
		cfg.Login.Webhook, cfg.AllowAnonymous = webhook.Options{URL: "http://127.0.0.1:1/", Failure: webhook.Ignore}, true
	case strings.HasPrefix(lock, "throttle."):
		cfg.Login.PasswordFile, cfg.Login.LoginBurst, cfg.AllowAnonymous = cfg.DataDir+".users", 1e6, true
		if err := passwd.Set(cfg.Login.PasswordFile, "alice", []byte("secret"), passwd.MinIterations); err != nil {
			panic(err)
		}
	}
}

// Whatever lock is locked when a defect shows, the process ends and loses nothing.
func TestADefectUnderEachLock(t *testing.T) {
	t.Parallel()
	for _, lock := range lockrank.LockNames() {
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			if lock == "slab.mappings.mu" && raceEnabled {
				t.Skip("under the race detector slabs are on the Go heap, so this lock is never locked")
			}
			if lock == "raftlog.Log.mu" || lock == "relay.Relay.mu" || lock == "clients.Clients.mu" || lock == "fronts.Fronts.mu" || strings.HasPrefix(lock, "mux.") || strings.HasPrefix(lock, "node.") {
				t.Skip("only a node of a cluster acquires this lock: a test of package clustered plants a panic under it")
			}
			aPlantedDefect(t, lock)
		})
	}
}
