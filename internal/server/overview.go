package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/doctor"
	"github.com/holdfast-mqtt/holdfast/internal/metrics"
	"github.com/holdfast-mqtt/holdfast/internal/overview"
)

// overviewPath is where the server says how it is: GET, with how many keys and sessions the
// answer shall have; it is an overview.Overview as JSON.
const overviewPath = "/v1/overview"

// Overview asks the server that runs on dataDir how it is. heaviest is how many keys, and how many
// sessions, it names that take most, at most overview.MaxHeaviest; if it is 0, the server does not
// look at each of them.
func Overview(ctx context.Context, dataDir string, heaviest int) (o overview.Overview, err error) {
	body, err := askControl(ctx, dataDir, http.MethodGet, overviewPath+"?heaviest="+strconv.Itoa(heaviest), nil)
	if err != nil {
		return o, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&o); err != nil {
		return o, fmt.Errorf("the server's answer cannot be understood: %w", err)
	}
	return o, nil
}

func (s *Server) serveOverview(w http.ResponseWriter, r *http.Request) {
	heaviest, err := strconv.Atoi(r.URL.Query().Get("heaviest"))
	if err != nil || heaviest < 0 || heaviest > overview.MaxHeaviest {
		http.Error(w, fmt.Sprintf("heaviest: want a number up to %d", overview.MaxHeaviest), http.StatusBadRequest)
		return
	}
	sources := s.sources()
	o := overview.Overview{At: time.Now().UTC(), Uptime: time.Since(s.started), Version: sources.Version, Unready: s.unready()}
	o.Figures, o.Times = metrics.Read(sources)
	for _, f := range metrics.Fill(sources, doctor.Bound) {
		if f.Level != doctor.OK {
			o.Bounds = append(o.Bounds, f)
		}
	}
	if heaviest > 0 {
		keys, sessions := overview.Keys{Most: heaviest}, overview.Sessions{Most: heaviest}
		s.engine.Weigh(keys.Add)
		for _, id := range s.broker.Sessions.ClientIDs() {
			if info, ok := s.broker.Sessions.Info(id); ok {
				sessions.Add(info)
			}
		}
		o.Keys, o.Sessions = keys.List(), sessions.List()
	}
	_ = json.NewEncoder(w).Encode(o)
}
