// Package admin serves health, metrics, profiles and the HTTP API of a server over HTTP. The server
// package makes it before the data is opened, so that a start which takes long can be
// watched. It knows nothing of what it serves.
//
// On a loopback address it speaks HTTP, and answers each program of the machine, except
// that profiles and the API are for administrators where clients have to prove who they are. Beyond
// loopback it speaks HTTPS, and all but /healthz, /readyz and the page are for administrators:
// those whose quota in the policy has the reserve. The page has nothing of the server's in it;
// its MQTT connections prove who they are to the broker.
package admin

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/audit"
	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/secrets"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
	"github.com/holdfast-mqtt/holdfast/internal/transport/websocket"
)

// Bounds of what clients of the listener can make it hold.
const (
	MaxConnections = 32       // at once; more are closed
	MaxWaiting     = 16       // of them, those that have no whole request yet, or wait for the next one; more end the oldest of the address that has most
	maxHeader      = 16 << 10 // bytes of a request's header
	headerTimeout  = 10 * time.Second
	requestTimeout = 10 * time.Second
	answerTimeout  = 2 * time.Minute // a profile of the processor may take a minute
	idleTimeout    = time.Minute
)

// Options of Open.
type Options struct {
	Addr  string                            // HOST:PORT
	TLS   certs.Files                       // beyond loopback; needed there
	Bound func(l net.Listener) net.Listener // wraps the TCP listener; nil: it stays as it is
	Log   *slog.Logger                      // needed
	// Later says that Part comes with Use: until then Ready and Metrics are answered as Part has
	// them, and beyond loopback no client is an administrator.
	Later bool
	Page  http.Handler // below pagePath, for every client; nil: there is none
	Part
}

// Part is what is served, and to which clients.
type Part struct {
	Who     func(r *http.Request) (id *access.Identity, reason string) // says who has made a request, or why that is not known; nil: clients are not asked
	May     access.Permissions                                         // nil: every client may do everything
	Ready   func() []string                                            // why the server is not ready; empty: it is
	Metrics http.Handler                                               // needed
	API     Served                                                     // paths that begin with apiPrefix; nil: there are none
	Audit   *audit.Log                                                 // gets refused requests; nil: none
	MQTT    http.Handler                                               // makes MQTT connections of requests for mqttPath; nil: it makes none
}

// Served answers a request; by is who has made it, nil if clients are not asked.
type Served func(w http.ResponseWriter, r *http.Request, by *access.Identity)

// apiPrefix begins the paths of the API, of which refusals are JSON as well.
const apiPrefix = "/api/"

// Paths of the page, and of its connections.
const (
	pagePath = "/console/"
	mqttPath = "/mqtt"
)

// Server is the listener and what it serves.
type Server struct {
	o        Options
	part     atomic.Pointer[Part]
	listener net.Listener
	http     *http.Server
	certs    *certs.Server // nil: no TLS
	loopback bool
	waiting  *sockets.Handshakes
	turned   atomic.Int64 // because of MaxConnections
}

// Open listens, and serves until Close. Connections that cannot be served are closed.
func Open(o Options) (*Server, error) {
	s := &Server{o: o, waiting: sockets.NewHandshakes(MaxWaiting)}
	if err := s.check(); err != nil {
		return nil, err
	}
	s.part.Store(&s.o.Part)
	tcp, err := sockets.Listen(o.Addr)
	if err != nil {
		return nil, fmt.Errorf("--admin: cannot listen on %s: %w", o.Addr, err)
	}
	if o.Bound != nil {
		tcp = o.Bound(tcp)
	}
	s.listener = &bounded{Listener: tcp, turned: &s.turned, waiting: s.waiting}
	if s.certs != nil {
		s.listener = tls.NewListener(s.listener, s.certs.Config())
	}
	s.http = &http.Server{
		Handler: failstop.Handler(o.Log, serving(s.handler())), ConnContext: withConn, ConnState: noteIdle, ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// check says what is missing, and reads the certificates.
func (s *Server) check() (err error) {
	o := &s.o
	host, _, err := net.SplitHostPort(o.Addr)
	if err != nil {
		return fmt.Errorf("--admin %q: want HOST:PORT, for example 127.0.0.1:9090", secrets.URL(o.Addr))
	}
	if s.loopback = isLoopback(host); s.loopback {
		return nil
	}
	switch {
	case o.TLS.Cert == "" || o.TLS.Key == "":
		return fmt.Errorf("--admin %s is beyond loopback and needs a certificate: give --tls-cert and --tls-key, or listen on 127.0.0.1", o.Addr)
	case !o.Later && !o.Part.protected():
		return s.unprotected()
	}
	files := o.TLS
	files.ClientAuth = certs.Optional // a probe shows none
	if s.certs, err = certs.NewServer(files, true); err != nil {
		return fmt.Errorf("--admin %s: %w", o.Addr, err)
	}
	return nil
}

// protected says whether administrators are told from other clients.
func (p *Part) protected() bool { return p.Who != nil && p.May != nil }

func (s *Server) unprotected() error {
	return fmt.Errorf("--admin %s is beyond loopback and is for administrators: give --password-file, --jwt-keys or --tls-client-ca, and a --policy with a group that has the quota reserve, or listen on 127.0.0.1", s.o.Addr)
}

// Use has the listener serve p from now on: on a node of a cluster, where one server comes after
// the other. It fails beyond loopback if p does not tell administrators from other clients.
func (s *Server) Use(p Part) error {
	if !s.loopback && !p.protected() {
		return s.unprotected()
	}
	s.part.Store(&p)
	return nil
}

// Serve serves until Close.
func (s *Server) Serve() {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		s.o.Log.Error("the listener of --admin failed", "error", err)
	}
}

// Addr is the address that is listened on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Certs are what is shown to clients; nil without TLS.
func (s *Server) Certs() *certs.Server { return s.certs }

// Loopback says whether only programs of this machine reach the listener.
func (s *Server) Loopback() bool { return s.loopback }

// TurnedAway is how many connections were closed because of MaxConnections or MaxWaiting.
func (s *Server) TurnedAway() int64 { return s.turned.Load() + s.waiting.Ended() }

// Close stops listening, and waits for answers under way until ctx ends.
func (s *Server) Close(ctx context.Context) error {
	if err := s.http.Shutdown(ctx); err != nil {
		return s.http.Close()
	}
	return nil
}

// handler serves the paths.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /metrics", s.guard(!s.loopback, without(func(w http.ResponseWriter, r *http.Request) { s.part.Load().Metrics.ServeHTTP(w, r) })))
	mux.Handle("GET "+profilesPath, s.guard(true, without(profile)))
	mux.Handle(apiPrefix, s.guard(true, s.serveAPI))
	mux.HandleFunc("GET "+mqttPath, s.serveMQTT)
	if s.o.Page != nil {
		mux.Handle(pagePath, s.o.Page)
		mux.Handle("GET /{$}", http.RedirectHandler(pagePath, http.StatusFound))
	}
	return s.sameOrigin(mux)
}

// without is what is served to each administrator alike.
func without(f http.HandlerFunc) Served {
	return func(w http.ResponseWriter, r *http.Request, _ *access.Identity) { f(w, r) }
}

// serveMQTT makes MQTT connections of requests, where there is a server for them.
func (s *Server) serveMQTT(w http.ResponseWriter, r *http.Request) {
	if h := s.part.Load().MQTT; h != nil {
		h.ServeHTTP(w, r)
		return
	}
	answer(w, http.StatusServiceUnavailable, "no clients are accepted here yet")
}

// serveAPI serves the API, where there is one.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request, by *access.Identity) {
	if api := s.part.Load().API; api != nil {
		api(w, r, by)
		return
	}
	http.NotFound(w, r)
}

// ready says whether the server serves clients, and to those that may know why not.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	reasons := s.part.Load().Ready()
	switch {
	case len(reasons) == 0:
		answer(w, http.StatusOK, "ready")
	case s.loopback:
		answer(w, http.StatusServiceUnavailable, "not ready: "+strings.Join(reasons, "; "))
	default:
		answer(w, http.StatusServiceUnavailable, "not ready")
	}
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}

// refuse is answer for a request that is refused.
func refuse(w http.ResponseWriter, r *http.Request, status int, text string) {
	if !strings.HasPrefix(r.URL.Path, apiPrefix) {
		answer(w, status, text)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text})
}

// guard lets administrators pass. Where clients are not asked who they are, every one that
// reaches the listener, on this machine, is one.
func (s *Server) guard(ask bool, next Served) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := s.part.Load()
		switch {
		case p.Who == nil && !s.loopback:
			refuse(w, r, http.StatusServiceUnavailable, "the server is starting, and does not know yet who is an administrator")
			return
		case !ask || p.Who == nil:
			next(w, r, nil)
			return
		}
		id, reason := p.Who(r)
		switch {
		case id == nil:
			s.note(r, nil, http.StatusUnauthorized, reason)
			w.Header().Set("WWW-Authenticate", `Basic realm="holdfast", charset="UTF-8"`)
			refuse(w, r, http.StatusUnauthorized, "an administrator's password, token or certificate is needed")
		case !access.QuotaOf(p.May, id).Reserve:
			s.note(r, id, http.StatusForbidden, "its quota has no reserve")
			refuse(w, r, http.StatusForbidden, "this is for administrators: for principals of a group of the policy with the quota reserve")
		default:
			next(w, r, id)
		}
	})
}

// note writes about a request that is refused to the log and to the audit log.
func (s *Server) note(r *http.Request, by *access.Identity, status int, reason string) {
	s.o.Log.Info("refusing a request to --admin", "remote", r.RemoteAddr, "path", r.URL.Path, "client", by.Name(), "status", status, "reason", reason)
	s.part.Load().Audit.RequestRefused(audit.Request{By: by.Name(), Remote: r.RemoteAddr, Method: r.Method, Target: r.URL.RequestURI(), Status: status}, reason)
}

// sameOrigin refuses requests of web pages that are not the server's own. A page of another host may reach a loopback
// address under a name of its own (DNS rebinding): the request then names that host. Beyond
// loopback the certificate prevents it.
func (s *Server) sameOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		switch {
		case r.Header.Get("Origin") != "" && !websocket.SameOrigin(r):
			s.note(r, nil, http.StatusForbidden, "a web page of another origin has made it")
			refuse(w, r, http.StatusForbidden, "web pages are not served")
		case s.loopback && !isLoopback(host):
			s.note(r, nil, http.StatusMisdirectedRequest, "its Host is not this machine")
			refuse(w, r, http.StatusMisdirectedRequest, "the Host of the request is not this machine: use localhost, or the address of --admin")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isLoopback says whether a host is this machine.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
