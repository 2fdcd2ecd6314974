package metrics

import (
	"net/http"

	"github.com/holdfast-mqtt/holdfast/internal/front"
)

// FrontHandler serves the metrics of a front, of its process and of Go's runtime.
func FrontHandler(figures func() front.Figures) http.Handler {
	return serve(collect(ofFront, func() *moment {
		f := figures()
		return &moment{front: &f}
	}))
}

// ofFigures is for a family of one number without labels.
func ofFigures(value func(f *front.Figures) int64) func(*moment, func(float64, ...string)) {
	return func(m *moment, emit func(float64, ...string)) { emit(float64(value(m.front))) }
}

// ofFront are the metrics of a front, which servers do not have.
var ofFront = []family{
	{name: "holdfast_front_connections", kind: gauge, help: "connections of clients that the front holds", values: ofFigures(func(f *front.Figures) int64 { return int64(f.Connections) })},
	{name: "holdfast_front_connections_max", kind: gauge, help: "bound of them (--max-connections)", values: ofFigures(func(f *front.Figures) int64 { return int64(f.MaxConnections) })},
	{name: "holdfast_front_buffered_bytes", kind: gauge, help: "what clients, or the leader, have not read yet", values: ofFigures(func(f *front.Figures) int64 { return f.Buffered })},
	{name: "holdfast_front_buffered_max_bytes", kind: gauge, help: "bound of that (--max-buffered)", values: ofFigures(func(f *front.Figures) int64 { return f.MaxBuffered })},
	{name: "holdfast_front_slow_total", kind: counter, help: "clients that were disconnected at that bound", values: ofFigures(func(f *front.Figures) int64 { return f.Slow })},
	{name: "holdfast_front_links", kind: gauge, help: "connections to the leader; 0: no client is served", values: ofFigures(func(f *front.Figures) int64 { return int64(f.Links) })},
	{name: "holdfast_front_term", kind: gauge, help: "term of the leader to which these are, as holdfast_cluster_term of a node; 0: none was found yet", values: ofFigures(func(f *front.Figures) int64 { return int64(f.Term) })},
	{name: "holdfast_front_beyond_total", kind: counter, help: "connections that were closed at their bound", values: ofFigures(func(f *front.Figures) int64 { return f.Beyond })},
	{name: "holdfast_front_unserved_total", kind: counter, help: "clients that were refused because no leader took them", values: ofFigures(func(f *front.Figures) int64 { return f.Unserved })},
	{name: "holdfast_front_keep_alive_timeouts_total", kind: counter, help: "clients that were silent for one and a half times their keep-alive", values: ofFigures(func(f *front.Figures) int64 { return f.Silent })},
	{name: "holdfast_front_pings_total", kind: counter, help: "PINGREQ that the front has answered", values: ofFigures(func(f *front.Figures) int64 { return f.Pings })},
}
