package server

import (
	"context"
	"encoding/json"
	"net/http"
)

// healthPath is where the server says whether it is ready: GET, the answer is a healthAnswer
// as JSON.
const healthPath = "/v1/health"

type healthAnswer struct {
	Unready []string // empty: it serves clients
}

func (s *Server) serveHealth(w http.ResponseWriter, _ *http.Request) {
	_ = json.NewEncoder(w).Encode(healthAnswer{Unready: s.unready()})
}

// Unready are the reasons why the server does not serve clients; empty: it does.
func (s *Server) Unready() []string { return s.unready() }

// Health asks the server that runs on dataDir why it does not serve clients, for the reasons
// that /readyz of --admin gives; none: it serves them. The error is ErrNotRunning if no
// server can be reached, which is so until a starting server has read its data.
func Health(ctx context.Context, dataDir string) (unready []string, err error) {
	var answer healthAnswer
	err = askJSON(ctx, dataDir, healthPath, &answer)
	return answer.Unready, err
}
