// Package testserver runs Holdfast for tests.
//
//	s := testserver.Start(t)                      // in this process
//	s := testserver.Run(t, "--max-keys", "3")     // the built program
//	c := mqtttest.Connect(t, s.Addr)
//
// Each server has a port and a data directory of its own, and ends with its test, which
// shows the last lines of its output if it failed. A server can be stopped, killed and
// started again on the same data: on the same address as well if it was given one
// ([FreeAddress]).
//
// A package whose tests use the program, or servers that no test owns, has a TestMain
// that calls [Main]. Tests of packages that internal/server imports, and its own, can't
// import this package; they can import internal/testserver/process.
package testserver

import (
	"context"
	"log/slog"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Server is a server in this process.
type Server struct {
	*server.Server // nil while it is stopped
	Config         server.Config
	Addr           string // host:port of MQTT over TCP
	WebSocket      string // host:port of MQTT over WebSocket

	tb testing.TB
}

// Start runs a server until the test ends. It discards its log and has the program's
// defaults, unless change sets something else.
func Start(tb testing.TB, change ...func(*server.Config)) *Server {
	tb.Helper()
	s := &Server{Config: config(tb.TempDir(), change...), tb: tb}
	s.StartAgain()
	tb.Cleanup(s.Stop)
	return s
}

func config(data string, change ...func(*server.Config)) server.Config {
	c := server.Default()
	c.Listen, c.WebSocket = []string{"127.0.0.1:0"}, []string{"127.0.0.1:0"}
	c.DataDir = data
	c.Logger = slog.New(slog.DiscardHandler)
	for _, f := range change {
		f(&c)
	}
	return c
}

// StartAgain starts a stopped server, with what Config is now.
func (s *Server) StartAgain() {
	s.tb.Helper()
	running, err := server.Start(s.Config)
	if err != nil {
		s.tb.Fatalf("start the server: %v", err)
	}
	s.Server, s.Addr = running, running.Addrs()[0].String()
	if ws := running.WebSocketAddrs(); len(ws) > 0 {
		s.WebSocket = ws[0].String()
	}
}

// Stop shuts the server down, if it runs.
func (s *Server) Stop() {
	s.tb.Helper()
	if s.Server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		s.tb.Errorf("shut the server down: %v", err)
	}
	s.Server = nil
}

// Restart stops the server and starts it again. All connections end, and a server
// that listens on port 0 gets another port.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	s.StartAgain()
}
