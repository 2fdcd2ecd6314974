package metrics

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// scrape asks for metrics.
func scrape(t *testing.T, url string) (status int, kind, text string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, r.Header.Get("Content-Type"), string(b)
}

// The answer is in Prometheus's text format, with the metrics of the process and of Go's runtime,
// or has those that the request names.
func TestScrape(t *testing.T) {
	t.Parallel()
	kept := family{name: "holdfast_kept", kind: gauge, help: "what is kept", labels: []string{"kind"}, values: func(_ *moment, emit func(float64, ...string)) {
		emit(3, `a "key"`)
	}}
	s := httptest.NewServer(serve(collect([]family{kept}, func() *moment { return &moment{} })))
	defer s.Close()

	const figure = "# HELP holdfast_kept what is kept\n# TYPE holdfast_kept gauge\nholdfast_kept{kind=\"a \\\"key\\\"\"} 3\n"
	status, kind, all := scrape(t, s.URL)
	if status != http.StatusOK || !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Errorf("status %d, %s", status, kind)
	}
	for _, want := range []string{figure, "\ngo_goroutines "} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in\n%s", want, all)
		}
	}
	if _, _, named := scrape(t, s.URL+"?name[]=holdfast_kept&name[]=holdfast_lost"); named != figure {
		t.Errorf("of the metrics that were named there is %q, want %q", named, figure)
	}
}

// At most maxScrapes answers are made at a time: one more is refused, with the reason.
func TestScrapesHaveABound(t *testing.T) {
	t.Parallel()
	reached, release := make(chan bool), make(chan bool)
	h := &scrapes{prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		reached <- true
		<-release
		return nil, nil
	}), make(chan struct{}, maxScrapes)}
	s := httptest.NewServer(h)
	defer s.Close()

	statuses := make(chan int, maxScrapes)
	for range maxScrapes {
		go func() {
			r, err := http.Get(s.URL)
			if err != nil {
				statuses <- 0
				return
			}
			r.Body.Close()
			statuses <- r.StatusCode
		}()
		<-reached
	}
	if status, _, text := scrape(t, s.URL); status != http.StatusServiceUnavailable || !strings.Contains(text, "4 requests for metrics are being answered") {
		t.Errorf("one more: status %d, %q", status, text)
	}
	close(release)
	for range maxScrapes {
		if status := <-statuses; status != http.StatusOK {
			t.Errorf("status %d, want 200", status)
		}
	}
}

func TestScrapeOfWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(&scrapes{prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		return nil, errors.New("no figures")
	}), make(chan struct{}, maxScrapes)})
	defer s.Close()
	if status, _, text := scrape(t, s.URL); status != http.StatusInternalServerError || text != "the metrics cannot be read: no figures\n" {
		t.Errorf("status %d, %q", status, text)
	}
}
