package server

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/admin"
	"github.com/holdfast-mqtt/holdfast/internal/broker/reserved"
	"github.com/holdfast-mqtt/holdfast/internal/console"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/httpapi"
	"github.com/holdfast-mqtt/holdfast/internal/metrics"
	"github.com/holdfast-mqtt/holdfast/internal/policy"
	"github.com/holdfast-mqtt/holdfast/internal/service"
)

// openAdmin begins to serve health and metrics, if that is wanted: before the data is
// opened, which may take long.
func (s *Server) openAdmin() (err error) {
	if s.config.Admin == "" {
		return nil
	}
	s.serveNodeMetrics()
	if r := s.config.Replicated; r != nil && r.Reporter != nil {
		s.nodeAPI = httpapi.New(httpapi.Options{Audit: s.audit, Log: s.log, Cluster: r.Reporter})
	}
	part := admin.Part{May: s.config.May, Audit: s.audit, Ready: s.unready, Metrics: http.HandlerFunc(s.serveMetrics), API: s.serveAPI, MQTT: s.console.Handler(s.unready)}
	if s.login != nil {
		part.Who = s.whoAsks
	}
	if r := s.config.Replicated; r != nil && r.Admin != nil {
		s.admin = r.Admin
		err = s.admin.Use(part)
	} else {
		s.admin, err = admin.Open(s.config.AdminOptions(part, s.log, func(l net.Listener) net.Listener { return s.withinDescriptors(l, true) }))
	}
	if err != nil {
		return err
	}
	if certificates := s.admin.Certs(); certificates != nil {
		s.addReloader(Reloader{Name: "TLS configuration of --admin", Files: certificates.Files, Reload: certificates.Reload})
	}
	if !s.ownsAdmin() {
		return nil
	}
	s.serving.Add(1)
	go func() {
		defer failstop.End(s.log, "the listener of --admin")
		s.admin.Serve()
		s.serving.Done()
	}()
	s.log.Info("health and metrics are served", "admin", s.admin.Addr())
	return nil
}

// ownsAdmin says whether the listener is the server's, and not one of its node.
func (s *Server) ownsAdmin() bool {
	return s.admin != nil && (s.config.Replicated == nil || s.config.Replicated.Admin == nil)
}

// AdminOptions are those of the listener of --admin, but for the rest of its Part.
func (c *Config) AdminOptions(part admin.Part, log *slog.Logger, bound func(net.Listener) net.Listener) admin.Options {
	return admin.Options{Addr: c.Admin, TLS: c.TLS, Bound: bound, Log: log, Page: console.Page(), Part: part}
}

// AdminAddr is the address of --admin; nil: there is none.
func (s *Server) AdminAddr() net.Addr {
	if s.admin == nil {
		return nil
	}
	return s.admin.Addr()
}

func (s *Server) closeAdmin(ctx context.Context) error {
	if !s.ownsAdmin() {
		s.serveNodeMetrics()
		s.api.Store(nil)
		s.console.Close()
		return nil
	}
	return s.admin.Close(ctx)
}

// setPhase notes what the server does besides serving clients; empty: it serves them.
func (s *Server) setPhase(phase string) { s.phase.Store(&phase) }

// unready are the reasons why the server does not serve clients. That of a node which follows
// is as ready as the node.
func (s *Server) unready() (reasons []string) {
	if r := s.config.Replicated; r != nil && r.Unready != nil && s.phase.Load() != nil {
		return r.Unready(*s.phase.Load())
	}
	if phase := s.phase.Load(); phase != nil && *phase != "" {
		reasons = append(reasons, *phase)
	}
	return reasons
}

// serveMetrics serves them from the moment on at which there is something to count.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	if h := s.metrics.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	http.Error(w, "there are no metrics yet: "+strings.Join(s.unready(), "; "), http.StatusServiceUnavailable)
}

// serveAPI serves the HTTP API from the moment on at which clients are served.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request, by *access.Identity) {
	if a := s.api.Load(); a != nil {
		a.Serve(w, r, by)
		return
	}
	if s.nodeAPI != nil && httpapi.OfNode(r.URL.Path) {
		s.nodeAPI.Serve(w, r, by)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(httpapi.Failure{Error: "the server is not ready: " + cmp.Or(strings.Join(s.unready(), "; "), *s.phase.Load())})
}

// openAPI has the HTTP API be served.
func (s *Server) openAPI() {
	if s.admin == nil {
		return
	}
	o := httpapi.Options{
		Sessions: s.broker.Sessions, Reserved: reserved.Topics{Handlers: service.Topics(), Servers: service.Protected()},
		May: s.config.May, Audit: s.audit, Watchers: s.service.Watchers, AwaitRead: s.awaitRead(), Log: s.log,
	}
	if guard, is := s.config.May.(*policy.Guard); is && s.config.Policy != "" {
		o.Policy = guard.Policy
	}
	if r := s.config.Replicated; r != nil {
		o.Cluster = r.Reporter
	}
	s.api.Store(httpapi.New(o))
}

// serveNodeMetrics has the metrics of the node be served, before there are others and after.
func (s *Server) serveNodeMetrics() {
	if r := s.config.Replicated; r != nil && r.Cluster != nil {
		h := metrics.NodeHandler(*r.Cluster)
		s.metrics.Store(&h)
	}
}

// openMetrics has metrics be served of what is open now.
func (s *Server) openMetrics() {
	if s.admin == nil {
		return
	}
	h := metrics.Handler(s.sources())
	s.metrics.Store(&h)
}

// sources are what metrics are read from.
func (s *Server) sources() metrics.Sources {
	sources := metrics.Sources{
		Broker: s.broker, Engine: s.engine, Service: s.service, Journal: s.journal, Memory: s.memory, Login: s.login, Bridges: s.bridges,
		Version: orDefault(s.config.Version, "development build"), Started: s.started, Maximum: s.maximum, Descriptors: s.descriptors.limit,
		API:        s.api.Load,
		Handshakes: func() (under, ended int64) { return int64(s.handshakes.Under()), s.handshakes.Ended() },
		TurnedAway: func() int64 {
			if s.descriptors.bounds == nil {
				return 0
			}
			return s.descriptors.bounds.TurnedAway()
		},
	}
	if s.spans != nil {
		sources.Spans = s.spans.Counts
	}
	if r := s.config.Replicated; r != nil {
		sources.Cluster = r.Cluster
	}
	return sources
}

// whoAsks says who has made a request to --admin.
func (s *Server) whoAsks(r *http.Request) (*access.Identity, string) {
	from := access.Origin{TLS: r.TLS}
	if addr, err := net.ResolveTCPAddr("tcp", r.RemoteAddr); err == nil {
		from.Remote = addr
	}
	if certificates := s.admin.Certs(); certificates != nil && r.TLS != nil && !certificates.Vouches(r.TLS) {
		return nil, "the client's certificate is not valid any more"
	}
	user, password, _ := r.BasicAuth()
	if token, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); is {
		user, password = "", strings.TrimSpace(token)
	}
	id, reason := s.login.Identify(user, password, &from, s.stop)
	if id != nil && !id.Expires.IsZero() && time.Now().After(id.Expires) {
		return nil, "the client's " + string(id.Method) + " has expired"
	}
	return id, reason
}
