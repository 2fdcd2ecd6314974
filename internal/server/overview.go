package server

import (
	"context"

	"github.com/holdfast-mqtt/holdfast/internal/overview"
)

// Overview asks the server that runs on dataDir how it is, as overview.Target says.
func Overview(ctx context.Context, dataDir string, heaviest int) (o overview.Overview, err error) {
	err = askJSON(ctx, dataDir, overview.Target(heaviest), &o)
	return o, err
}
