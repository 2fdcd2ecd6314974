package spans

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

const deadline = time.Minute

// collector takes spans as a collector of OpenTelemetry does.
type collector struct {
	*httptest.Server
	requests chan document
	answer   func(n int) (status int, body string) // to the n-th request, from 1; nil: it takes all

	mu sync.Mutex
	n  int // guarded by mu
}

func newCollector(t *testing.T, answer func(n int) (int, string)) *collector {
	t.Helper()
	c := &collector{requests: make(chan document, 1000), answer: answer}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.n++
	n := c.n
	c.mu.Unlock()
	var d document
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" {
		http.Error(w, "no request of OTLP", http.StatusBadRequest)
		return
	}
	if c.answer != nil {
		if status, body := c.answer(n); status != 0 {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return
		}
	}
	c.requests <- d
	_, _ = io.WriteString(w, "{}")
}

// next awaits spans.
func (c *collector) next(t *testing.T) (spans []span) {
	t.Helper()
	select {
	case d := <-c.requests:
		for _, r := range d.ResourceSpans {
			for _, s := range r.ScopeSpans {
				spans = append(spans, s.Spans...)
			}
		}
		return spans
	case <-time.After(deadline):
		t.Fatal("no spans came")
	}
	return nil
}

func exporter(t *testing.T, o Options) *Exporter {
	t.Helper()
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		e.Close(ctx)
	})
	return e
}

const (
	parentTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	parentSpan  = "00f067aa0ba902b7"
	sampled     = "00-" + parentTrace + "-" + parentSpan + "-01"
)

func TestSpanIsSent(t *testing.T) {
	t.Parallel()
	for keys, want := range map[string]attribute{
		"": {"holdfast.key_hash", value{"a6a5e3816164f92e"}}, PlainKey: {"holdfast.key", value{"sensor/\uFFFD"}}, NoKey: {},
	} {
		c := newCollector(t, nil)
		e := exporter(t, Options{Endpoint: c.URL, Keys: keys, Version: "v1", Node: "a"})
		key := "sensor/1"
		if keys == PlainKey {
			key = "sensor/\xff"
		}
		before := time.Now().UnixNano()
		s := e.Begin([]byte(sampled), []byte("vendor=1"))
		s.Describe("SET", "client", []byte(key))
		s.End("quota", "the quota has been exceeded")

		got := c.next(t)[0]
		if got.TraceID != parentTrace || got.Parent != parentSpan || !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(got.SpanID) || got.SpanID == parentSpan {
			t.Errorf("the span is %+v", got)
		}
		if got.Name != "SET" || got.Kind != 2 || got.TraceState != "vendor=1" || got.Flags != 1 || got.Status == nil || *got.Status != (status{2, "the quota has been exceeded"}) {
			t.Errorf("the span is %+v, status %+v", got, got.Status)
		}
		var began, ended int64
		fmt.Sscan(got.Start, &began)
		fmt.Sscan(got.End, &ended)
		if began < before || ended < began || ended > time.Now().UnixNano() {
			t.Errorf("it lasts from %d to %d", began, ended)
		}
		attributes := []attribute{{"db.system.name", value{"holdfast"}}, {"db.operation.name", value{"SET"}}, {"holdfast.client", value{"client"}}, {"holdfast.outcome", value{"quota"}}}
		if want.Key != "" {
			attributes = append(attributes, want)
		}
		if fmt.Sprint(got.Attributes) != fmt.Sprint(attributes) {
			t.Errorf("attributes %v, want %v", got.Attributes, attributes)
		}
	}
}

// A request has a span if its parent is sampled; without a parent, by the ratio.
func TestWhatIsSampled(t *testing.T) {
	t.Parallel()
	unsampled := strings.TrimSuffix(sampled, "01") + "00"
	for _, c := range []struct {
		traceparent string
		ratio       float64
		span, root  bool
	}{
		{sampled, 0, true, false}, {sampled, 1, true, false}, {unsampled, 1, false, false}, {"", 0, false, false}, {"", 1, true, true},
		{strings.ToUpper(sampled), 0, false, false}, {sampled + "-more", 0, false, false}, {"01" + sampled[2:] + "-more", 0, true, false}, {"01" + sampled[2:] + "more", 0, false, false},
		{"ff" + sampled[2:], 0, false, false}, {"00-" + strings.Repeat("0", 32) + sampled[35:], 1, true, true}, {sampled[:36] + strings.Repeat("0", 16) + "-01", 0, false, false},
		{strings.Replace(sampled, "4bf", "xyz", 1), 0, false, false}, {sampled[:54], 0, false, false}, {"00-" + parentTrace + "-" + parentSpan + "-03", 0, true, false},
	} {
		e := exporter(t, Options{Endpoint: "http://127.0.0.1:1", Ratio: c.ratio})
		s := e.Begin([]byte(c.traceparent), nil)
		if (s != nil) != c.span {
			t.Errorf("%q with ratio %v: a span %v, want %v", c.traceparent, c.ratio, s != nil, c.span)
		}
		if s != nil && (s.parent == [8]byte{}) != c.root {
			t.Errorf("%q with ratio %v: the parent is %x", c.traceparent, c.ratio, s.parent)
		}
	}
}

// Spans beyond the queue are dropped and counted, and their requests do not wait.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	arrived := make(chan struct{}, 100)
	c := newCollector(t, func(int) (int, string) {
		arrived <- struct{}{}
		<-release
		return 0, ""
	})
	e := exporter(t, Options{Endpoint: c.URL, Queue: 3})
	give := func(n int) {
		for range n {
			if s := e.Begin([]byte(sampled), nil); s != nil {
				s.End("ok", "")
			}
		}
	}
	give(1)
	<-arrived // the sender waits for the collector: the queue is empty, and stays as it is
	give(3)
	if _, dropped, _ := e.Counts(); dropped != 0 {
		t.Errorf("%d spans dropped at the bound", dropped)
	}
	early := &Span{exporter: e} // begun when there was room
	give(1)
	early.End("ok", "")
	if _, dropped, _ := e.Counts(); dropped != 2 {
		t.Errorf("%d spans dropped above the bound, want 2", dropped)
	}
	close(release)
	for n := 0; n < 4; {
		n += len(c.next(t))
	}
}

// What the collector does not take is counted; what may pass is tried again.
func TestCollectorThatRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer       func(n int) (int, string)
		sent, failed int64
	}{
		"too busy once":   {func(n int) (int, string) { return []int{0, http.StatusServiceUnavailable, 0}[min(n, 2)], "" }, 1, 0},
		"always too busy": {func(int) (int, string) { return http.StatusTooManyRequests, "" }, 0, 1},
		"not allowed":     {func(int) (int, string) { return http.StatusForbidden, "" }, 0, 1},
		"takes a part":    {func(int) (int, string) { return http.StatusOK, `{"partialSuccess":{"rejectedSpans":"1"}}` }, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newCollector(t, c.answer)
			e := exporter(t, Options{Endpoint: to.URL + "/"})
			e.Begin([]byte(sampled), nil).End("ok", "")
			for end := time.Now().Add(deadline); ; time.Sleep(time.Millisecond) {
				sent, _, failed := e.Counts()
				if sent+failed > 0 {
					if sent != c.sent || failed != c.failed {
						t.Errorf("%d sent, %d failed; want %d, %d", sent, failed, c.sent, c.failed)
					}
					return
				}
				if time.Now().After(end) {
					t.Fatal("nothing is counted")
				}
			}
		})
	}
}

// Close sends what waits.
func TestCloseSendsTheRest(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	e, err := New(Options{Endpoint: c.URL})
	if err != nil {
		t.Fatal(err)
	}
	const spans = maxBatch + 10
	for range spans {
		e.Begin([]byte(sampled), nil).End("ok", "")
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	e.Close(ctx)
	if sent, dropped, failed := e.Counts(); sent != spans || dropped+failed != 0 {
		t.Errorf("%d sent, %d dropped, %d failed; want %d, 0, 0", sent, dropped, failed, spans)
	}
	(*Exporter)(nil).Close(ctx)
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for text, o := range map[string]Options{
		"http://HOST:PORT":     {Endpoint: "127.0.0.1:4318"},
		"without a user":       {Endpoint: "http://me:secret@localhost:4318"},
		"https://HOST":         {Endpoint: "ftp://localhost"},
		"want a ratio":         {Endpoint: "http://localhost:4318", Ratio: 1.1},
		"--otlp-sample NaN":    {Endpoint: "http://localhost:4318", Ratio: math.NaN()},
		"has no meaning":       {Ratio: 0.5},
		"--otlp-queue 100001":  {Endpoint: "http://localhost:4318", Queue: MaxQueue + 1},
		"--otlp-queue -1":      {Endpoint: "http://localhost:4318", Queue: -1},
		"--otlp-sample -0.001": {Endpoint: "http://localhost:4318", Ratio: -0.001},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %q", o, err, text)
		}
	}
	for endpoint, want := range map[string]string{
		"http://localhost:4318":            "http://localhost:4318/v1/traces",
		"http://localhost:4318/":           "http://localhost:4318/v1/traces",
		"https://collector/otlp":           "https://collector/otlp/v1/traces",
		"https://collector/otlp/v1/traces": "https://collector/otlp/v1/traces",
		"http://[::1]:4318/v1/traces":      "http://[::1]:4318/v1/traces",
	} {
		if got, err := (&Options{Endpoint: endpoint}).target(); got != want || err != nil {
			t.Errorf("%s: %s, %v; want %s", endpoint, got, err, want)
		}
	}
	if e, err := New(Options{}); e != nil || err != nil {
		t.Errorf("without an endpoint: %v, %v", e, err)
	}
}
