package operate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// isNode says whether a data directory is that of a node of a cluster.
func isNode(dataDir string) bool {
	info, err := os.Stat(filepath.Join(dataDir, node.Dir))
	return err == nil && info.IsDir()
}

// health asks the server, or the node, that runs on a data directory why it is not ready.
func health(ctx context.Context, dataDir string) (unready []string, err error) {
	if isNode(dataDir) {
		return control.Health(ctx, dataDir)
	}
	return server.Health(ctx, dataDir)
}

// leaderOf says what to do about an error of a command that only the leader of a cluster can
// carry out, if the data directory is that of another node.
func leaderOf(ctx context.Context, dataDir string, err error) error {
	if !errors.Is(err, server.ErrNotRunning) || !isNode(dataDir) {
		return err
	}
	status, asked := control.Status(ctx, dataDir)
	switch {
	case errors.Is(asked, control.ErrNotRunning):
		return err
	case asked != nil:
		return asked
	case status.Leader == "":
		return fmt.Errorf("node %s does not lead its cluster, and no leader is known: %s", status.Node, status.Explain())
	case status.Leader == status.Node:
		return fmt.Errorf("node %s leads, and does not serve clients yet: try again", status.Node)
	}
	address := ""
	for _, n := range status.Nodes {
		if n.Name == status.Leader {
			address = n.Address
		}
	}
	return fmt.Errorf("node %s does not lead its cluster: run this command on node %s, which does (its address in the cluster is %s), with the --data of that node, or have this one lead first: holdfast cluster transfer %s --data %s", status.Node, status.Leader, address, status.Node, dataDir)
}
