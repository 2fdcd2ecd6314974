package servers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

// policyFile writes the policy.
func policyFile(dir string) (string, error) {
	file := filepath.Join(dir, "policy.yaml")
	return file, os.WriteFile(file, fmt.Appendf(nil, `rules:
- brokerResources:
  - method: Connect
  - {method: Publish, topics: [%q]}
  - {method: Subscribe, topics: ["clients/{principal.clientId}/#"]}
  stateStoreResources:
  - {method: ReadWrite, keyType: Pattern, keys: ["{principal.clientId}:*"]}
`, wire.InvokeTopic), 0o600)
}

func startHoldfastPolicy(ctx context.Context, l *Laboratory, dir string) (*Target, error) {
	file, err := policyFile(dir)
	if err != nil {
		return nil, err
	}
	return l.startHoldfast(ctx, dir, "sync", "--policy", file)
}
