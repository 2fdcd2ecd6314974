package metrics

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
)

// maxScrapes is how many answers are made at a time; more are refused (503).
const maxScrapes = 4

// scrapes answers GET /metrics, in Prometheus's text format, which all versions of it and the
// collectors of others read. The handler of Prometheus's library has the protobuf and OpenMetrics
// formats as well, of which nothing here makes use, and 320 KiB of the program with them.
type scrapes struct {
	from     prometheus.Gatherer
	underWay chan struct{} // has room for maxScrapes
}

// serve serves the metrics of c, with those of the process and of Go's runtime.
func serve(c *Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &scrapes{registry, make(chan struct{}, maxScrapes)}
}

// ServeHTTP implements http.Handler. With parameters name[] it answers with the metrics of these
// names only.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case s.underWay <- struct{}{}:
		defer func() { <-s.underWay }()
	default:
		http.Error(w, fmt.Sprintf("%d requests for metrics are being answered: ask again later", maxScrapes), http.StatusServiceUnavailable)
		return
	}
	all, err := s.from.Gather()
	if err != nil {
		http.Error(w, "the metrics cannot be read: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	out, names := bufio.NewWriter(w), r.URL.Query()["name[]"]
	for _, f := range all {
		if len(names) > 0 && !slices.Contains(names, f.GetName()) {
			continue
		}
		if _, err := expfmt.MetricFamilyToText(out, f); err != nil {
			return // the client is gone
		}
	}
	_ = out.Flush()
}
