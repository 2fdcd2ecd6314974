package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/holdfast-mqtt/holdfast/internal/overview"
)

// Overview asks the server that runs on dataDir how it is, as overview.Target says.
func Overview(ctx context.Context, dataDir string, heaviest int) (o overview.Overview, err error) {
	body, err := askControl(ctx, dataDir, http.MethodGet, overview.Target(heaviest), nil)
	if err != nil {
		return o, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&o); err != nil {
		return o, fmt.Errorf("the server's answer cannot be understood: %w", err)
	}
	return o, nil
}
