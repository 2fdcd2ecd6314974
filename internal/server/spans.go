package server

import (
	"context"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/spans"
)

// spansGrace is how long the collector may take for the last spans when the server ends.
const spansGrace = 2 * time.Second

// openSpans begins to send spans of requests, if the configuration names a collector.
func (s *Server) openSpans() (err error) {
	o := s.config.Spans
	o.Version, o.Node, o.Logger = s.config.Version, s.config.Cluster.Node, s.log
	if s.spans, err = spans.New(o); err == nil && o.Endpoint != "" && o.HeaderFile != "" {
		s.addReloader(Reloader{Name: "headers for the collector of spans", Files: func() []string { return []string{o.HeaderFile} }, Reload: s.spans.Reload})
	}
	return err
}

func (s *Server) closeSpans(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, spansGrace)
	defer cancel()
	s.spans.Close(ctx)
}
