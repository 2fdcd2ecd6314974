package overview

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/doctor"
	"github.com/holdfast-mqtt/holdfast/internal/metrics"
)

// Path is where a server says how it is: GET, with how many keys and sessions the answer shall
// have at most; it is an Overview as JSON.
const Path = "/v1/overview"

// Target is what is asked for. heaviest is how many keys, and how many sessions, the server names
// that take most, at most MaxHeaviest; if it is 0, the server does not look at each of them.
func Target(heaviest int) string { return Path + "?heaviest=" + strconv.Itoa(heaviest) }

// Handler answers requests for Path.
type Handler struct {
	Sources func() metrics.Sources
	Unready func() []string // why the server does not serve clients; empty: it does
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	heaviest, err := strconv.Atoi(r.URL.Query().Get("heaviest"))
	if err != nil || heaviest < 0 || heaviest > MaxHeaviest {
		http.Error(w, fmt.Sprintf("heaviest: want a number up to %d", MaxHeaviest), http.StatusBadRequest)
		return
	}
	s := h.Sources()
	o := Overview{At: time.Now().UTC(), Uptime: time.Since(s.Started), Version: s.Version, Unready: h.Unready()}
	o.Figures, o.Times = metrics.Read(s)
	for _, f := range metrics.Fill(s, doctor.Bound) {
		if f.Level != doctor.OK {
			o.Bounds = append(o.Bounds, f)
		}
	}
	if heaviest > 0 {
		keys, sessions := Keys{Most: heaviest}, Sessions{Most: heaviest}
		s.Engine.Weigh(keys.Add)
		for _, id := range s.Broker.Sessions.ClientIDs() {
			if info, ok := s.Broker.Sessions.Info(id); ok {
				sessions.Add(info)
			}
		}
		o.Keys, o.Sessions = keys.List(), sessions.List()
	}
	_ = json.NewEncoder(w).Encode(o)
}
