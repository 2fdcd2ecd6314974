package spans

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/secrets"
)

// What a span says of the key of its request.
const (
	NoKey     = "none"
	HashedKey = "hash" // the first 8 bytes of its SHA-256, in hexadecimal digits
	PlainKey  = "plain"
)

// Bounds.
const (
	DefaultQueue  = 2048
	MaxQueue      = 100_000
	maxBatch      = 512                    // spans of one request to the collector
	minInterval   = 100 * time.Millisecond // between two of them
	maxDelay      = time.Second            // that a span waits for others
	maxText       = 256                    // bytes of a client ID, of a key
	maxTraceState = 512                    // bytes of a tracestate that is passed on
	maxAnswer     = 64 << 10               // bytes of the collector's answer
	tries         = 3                      // of one batch
)

// Options configures an Exporter.
type Options struct {
	Endpoint string // base URL of the collector; empty: there are no spans
	// Headers go with each request, as NAME=VALUE; HeaderFile has further ones, one on each line; empty: none.
	Headers    []string
	HeaderFile string
	Ratio      float64 // of the requests without a valid traceparent that have a span, 0 to 1
	Queue      int     // spans that wait; 0: DefaultQueue
	Keys       string  // NoKey, HashedKey or PlainKey; empty: HashedKey
	Version    string  // of the program
	Node       string  // that identifies the server among others
	Logger     *slog.Logger
}

// Check says what is wrong with the options.
func (o *Options) Check() error {
	if o.Endpoint == "" {
		if o.Ratio != 0 {
			return errors.New("--otlp-sample has no meaning without --otlp-endpoint")
		}
		if len(o.Headers) > 0 || o.HeaderFile != "" {
			return errors.New("--otlp-header and --otlp-header-file have no meaning without --otlp-endpoint")
		}
		return nil
	}
	if _, err := o.target(); err != nil {
		return err
	}
	if _, err := o.headers(); err != nil {
		return err
	}
	if math.IsNaN(o.Ratio) || o.Ratio < 0 || o.Ratio > 1 {
		return fmt.Errorf("--otlp-sample %v: want a ratio from 0 to 1", o.Ratio)
	}
	if o.Queue < 0 || o.Queue > MaxQueue {
		return fmt.Errorf("--otlp-queue %d: want 1 to %d", o.Queue, MaxQueue)
	}
	return nil
}

// path is where collectors take traces, below the base URL.
const path = "/v1/traces"

// target is the URL to which spans are sent.
func (o *Options) target() (string, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("--otlp-endpoint %q: want http://HOST:PORT or https://HOST:PORT of a collector that takes OTLP over HTTP, without a user", secrets.URL(o.Endpoint))
	}
	if base := strings.TrimSuffix(u.Path, "/"); !strings.HasSuffix(base, path) {
		u.Path = base + path
	}
	return u.String(), nil
}

// Exporter sends spans. A nil Exporter makes none. Its methods are safe for concurrent use.
type Exporter struct {
	o      Options
	target string
	queue  chan *Span
	client http.Client
	stop   chan struct{}
	ended  chan struct{}
	down   bool // the sender's: the last batch was not taken

	headers atomic.Pointer[http.Header] // of each request; not changed

	sent, dropped, failed atomic.Int64
}

// Counts are how many spans the collector has taken, how many found no room in the queue, and
// how many the collector has not taken.
func (e *Exporter) Counts() (sent, dropped, failed int64) {
	return e.sent.Load(), e.dropped.Load(), e.failed.Load()
}

// New makes an Exporter, which runs until Close; nil without an endpoint.
func New(o Options) (*Exporter, error) {
	if err := o.Check(); err != nil || o.Endpoint == "" {
		return nil, err
	}
	if o.Queue == 0 {
		o.Queue = DefaultQueue
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	target, err := o.target()
	if err != nil {
		return nil, err
	}
	e := &Exporter{o: o, target: target, queue: make(chan *Span, o.Queue), stop: make(chan struct{}), ended: make(chan struct{})}
	e.client.Timeout = 10 * time.Second
	e.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // headers are for this collector
	if err := e.Reload(); err != nil {
		return nil, err
	}
	go func() {
		defer failstop.End(o.Logger, "sending spans")
		e.run()
	}()
	return e, nil
}

// Close sends what waits, once, until ctx ends.
func (e *Exporter) Close(ctx context.Context) {
	if e == nil {
		return
	}
	close(e.stop)
	select {
	case <-e.ended:
	case <-ctx.Done():
		e.client.CloseIdleConnections()
	}
}

// Span is one request. It belongs to one goroutine at a time.
type Span struct {
	exporter *Exporter
	at       place
	parent   [8]byte
	state    string // tracestate
	began    time.Time
	ended    time.Time

	name, client, key, outcome, fault string
}

// Begin begins a span for a request with these user properties, either of which may be
// absent; nil: there is to be none.
func (e *Exporter) Begin(traceparent, tracestate []byte) *Span {
	parent, ok := parse(traceparent)
	switch {
	case ok && !parent.sampled, !ok && (e.o.Ratio == 0 || rand.Float64() >= e.o.Ratio):
		return nil
	case len(e.queue) == cap(e.queue):
		e.dropped.Add(1)
		return nil
	}
	s := &Span{exporter: e, at: place{trace: parent.trace, span: newSpan()}, parent: parent.span, began: time.Now()}
	if !ok {
		s.at.trace = newTrace()
		s.parent = [8]byte{}
	} else if len(tracestate) <= maxTraceState {
		s.state = strings.ToValidUTF8(string(tracestate), "")
	}
	return s
}

// Describe says what the request is: of which command, by which client, about which key. The
// bytes are not kept.
func (s *Span) Describe(name, client string, key []byte) {
	s.name, s.client = name, text(client)
	switch {
	case len(key) == 0 || s.exporter.o.Keys == NoKey:
	case s.exporter.o.Keys == PlainKey:
		s.key = text(string(key[:min(len(key), maxText)]))
	default:
		sum := sha256.Sum256(key)
		s.key = hex.EncodeToString(sum[:8])
	}
}

// Named changes the name that Describe has given.
func (s *Span) Named(name string) { s.name = name }

// text is s as it may stand in JSON.
func text(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "\uFFFD") }

// End ends the span. fault says why the request was refused; empty: it was not.
func (s *Span) End(outcome, fault string) {
	s.ended, s.outcome, s.fault = time.Now(), outcome, fault
	select {
	case s.exporter.queue <- s:
	default:
		s.exporter.dropped.Add(1)
	}
}

// run sends batches.
func (e *Exporter) run() {
	defer close(e.ended)
	batch := make([]*Span, 0, maxBatch)
	for {
		select {
		case s := <-e.queue:
			batch = e.gather(append(batch, s))
			e.send(batch)
			clear(batch)
			batch = batch[:0]
		case <-e.stop:
			e.rest(batch)
			return
		}
		select {
		case <-time.After(minInterval):
		case <-e.stop:
			e.rest(batch)
			return
		}
	}
}

// gather adds spans that come within maxDelay.
func (e *Exporter) gather(batch []*Span) []*Span {
	late := time.NewTimer(maxDelay)
	defer late.Stop()
	for len(batch) < maxBatch {
		select {
		case s := <-e.queue:
			batch = append(batch, s)
		case <-late.C:
			return batch
		case <-e.stop:
			return batch
		}
	}
	return batch
}

// rest sends what is in the queue when the exporter ends.
func (e *Exporter) rest(batch []*Span) {
	for {
		select {
		case s := <-e.queue:
			if batch = append(batch, s); len(batch) == maxBatch {
				e.send(batch)
				batch = batch[:0]
			}
		default:
			if len(batch) > 0 {
				e.send(batch)
			}
			return
		}
	}
}

// send sends a batch, and tries again if the collector cannot be reached or says that it has
// too much to do.
func (e *Exporter) send(batch []*Span) {
	body, err := json.Marshal(e.document(batch))
	if err != nil { // it consists of valid strings and numbers
		e.o.Logger.Error("spans cannot be written as JSON", "error", err)
		e.failed.Add(int64(len(batch)))
		return
	}
	pause := minInterval
	for try := 1; ; try++ {
		rejected, again, err := e.post(body)
		if err == nil {
			e.failed.Add(rejected)
			e.sent.Add(int64(len(batch)) - rejected)
			if e.down {
				e.o.Logger.Info("the collector takes spans again", "endpoint", e.target)
			}
			e.down = false
			return
		}
		if !again || try == tries || e.stopping(pause) {
			e.failed.Add(int64(len(batch)))
			if !e.down {
				e.o.Logger.Warn("the collector has not taken spans, which are lost; this is said once until it takes some", "endpoint", e.target, "error", err)
			}
			e.down = true
			return
		}
		pause *= 5
	}
}

// stopping waits, and says whether the exporter ends.
func (e *Exporter) stopping(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return false
	case <-e.stop:
		return true
	}
}

// post makes one request. After an error again says whether another try may help.
func (e *Exporter) post(body []byte) (rejected int64, again bool, err error) {
	request, err := http.NewRequest(http.MethodPost, e.target, bytes.NewReader(body))
	if err != nil {
		return 0, false, err
	}
	request.Header = e.headers.Load().Clone()
	request.Header.Set("Content-Type", "application/json")
	answer, err := e.client.Do(request)
	if err != nil {
		return 0, true, err
	}
	defer answer.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch answer.StatusCode {
	case http.StatusOK:
		var partial struct {
			PartialSuccess struct {
				RejectedSpans json.Number `json:"rejectedSpans"`
			} `json:"partialSuccess"`
		}
		if json.Unmarshal(said, &partial) == nil {
			rejected, _ = partial.PartialSuccess.RejectedSpans.Int64()
		}
		return max(rejected, 0), false, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	return 0, again, fmt.Errorf("the collector answers %s", answer.Status)
}

// hostName is the machine's, for the resource.
func hostName() string {
	name, _ := os.Hostname()
	return text(name)
}
