package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/header"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/secrets"
)

// Webhook asks the questions. Its methods are safe for concurrent use.
type Webhook struct {
	o          Options
	log        *slog.Logger
	checkRules func(*access.Rules) error
	now        func() time.Time

	line    atomic.Pointer[line]
	places  chan struct{} // questions under way; capacity Options.Requests
	waiting atomic.Int64  // questions that wait for a place
	answers *answers
	failing atomic.Bool // the last question was a failure

	ended context.Context // done when Close is called
	end   context.CancelFunc

	outcomes [numOutcomes]atomic.Int64
	latency  *histogram.Histogram // of questions that were sent, in ns
}

// line is how the server is reached: what the files of the options say. It is not changed.
type line struct {
	client      *http.Client
	name, value string // of the header; empty: none
}

// Outcome is how a question ended.
type Outcome byte

// The outcomes.
const (
	WasAllowed    Outcome = iota
	WasDenied             // also from what is remembered, as below
	WasIgnored            //
	WasRemembered         // one of the three above, and no request was made
	TimedOut              // within Options.Timeout there was no place, or no whole answer
	WasBusy               // too many questions waited for a place
	Failed                // no connection, another status than 200, or an answer that is none
	numOutcomes
)

var outcomeNames = [numOutcomes]string{"allow", "deny", "ignore", "remembered", "timeout", "busy", "failed"}

// String is the outcome in metrics.
func (o Outcome) String() string { return outcomeNames[o] }

// errBusy says that too many questions wait.
var errBusy = errors.New("too many questions wait for the webhook")

// New makes a Webhook, and reads the files that the options name. checkRules says what is
// wrong with the rules of an answer. now is nil for time.Now. End the Webhook with Close.
func New(o Options, checkRules func(*access.Rules) error, log *slog.Logger, now func() time.Time) (*Webhook, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	o = o.WithDefaults()
	if now == nil {
		now = time.Now
	}
	w := &Webhook{
		o: o, log: log, checkRules: checkRules, now: now,
		places: make(chan struct{}, o.Requests), answers: newAnswers(o.MaxBytes), latency: histogram.New(100_000),
	}
	w.ended, w.end = context.WithCancel(context.Background())
	if err := w.Reload(); err != nil {
		w.end()
		return nil, err
	}
	return w, nil
}

// Close ends the questions under way.
func (w *Webhook) Close() {
	w.end()
	w.line.Load().client.CloseIdleConnections()
}

// Reload reads the files again, and forgets what the webhook has answered. After an error what
// was read before stays in use.
func (w *Webhook) Reload() error {
	next, err := w.dial()
	if err != nil {
		return err
	}
	if old := w.line.Swap(next); old != nil {
		old.client.CloseIdleConnections()
	}
	w.answers.forget()
	return nil
}

// dial reads the files.
func (w *Webhook) dial() (*line, error) {
	l := new(line)
	if file := w.o.HeaderFile; file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("--webhook-header-file: %w", err)
		}
		first, _, _ := strings.Cut(string(text), "\n")
		name, value, ok := header.Parse(first)
		if !ok {
			return nil, fmt.Errorf("%s:1: want a header, for example Authorization: Bearer SECRET", file)
		}
		l.name, l.value = name, value
	}
	security := &tls.Config{MinVersion: tls.VersionTLS12}
	if file := w.o.CA; file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("--webhook-ca: %w", err)
		}
		security.RootCAs = x509.NewCertPool()
		if !security.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s: there is no certificate in PEM in it", file)
		}
	}
	if w.o.Cert != "" {
		pair, err := tls.LoadX509KeyPair(w.o.Cert, w.o.Key)
		if err != nil {
			return nil, fmt.Errorf("--webhook-cert and --webhook-key: %w", err)
		}
		security.Certificates = []tls.Certificate{pair}
	}
	l.client = &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: w.o.Timeout}).DialContext, TLSClientConfig: security, TLSHandshakeTimeout: w.o.Timeout,
			MaxIdleConns: w.o.Requests, MaxIdleConnsPerHost: w.o.Requests, IdleConnTimeout: time.Minute,
			MaxResponseHeaderBytes: maxAnswer, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return l, nil
}

// IgnoresFailures says whether a question that fails counts as answered with Ignored.
func (w *Webhook) IgnoresFailures() bool { return w.o.Failure == Ignore }

// Busy says whether an error of Ask is that too many questions wait.
func Busy(err error) bool { return errors.Is(err, errBusy) }

// Ask asks about a client. It waits for the answer, for Options.Timeout at most. An error says
// that there is none.
func (w *Webhook) Ask(q *Question) (*Answer, error) {
	key := w.answers.key(q)
	if a := w.answers.get(key, w.now()); a != nil {
		w.outcomes[WasRemembered].Add(1)
		return a, nil
	}
	generation := w.answers.generation.Load()
	answer, size, err := w.ask(q)
	if err != nil {
		w.noteFailure(err)
		return nil, err
	}
	if w.failing.Swap(false) {
		w.log.Info("the webhook answers again", "url", secrets.Host(w.o.URL))
	}
	lasts := w.o.Denied
	switch answer.Result {
	case Allowed:
		w.outcomes[WasAllowed].Add(1)
		lasts = w.o.Remember
	case Denied:
		w.outcomes[WasDenied].Add(1)
	default:
		w.outcomes[WasIgnored].Add(1)
	}
	until := w.now().Add(lasts)
	if end := answer.Until(); !end.IsZero() && end.Before(until) {
		until = end
	}
	w.answers.put(key, answer, int64(size), until, generation)
	return answer, nil
}

// noteFailure counts a question that has no answer, and logs the first one.
func (w *Webhook) noteFailure(err error) {
	outcome := Failed
	var late net.Error
	switch {
	case errors.Is(err, errBusy):
		outcome = WasBusy
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &late) && late.Timeout():
		outcome = TimedOut
	}
	w.outcomes[outcome].Add(1)
	if w.ended.Err() == nil && !w.failing.Swap(true) {
		w.log.Error("the webhook does not answer as it must; clients are judged as --webhook-failure says until it does", "url", secrets.Host(w.o.URL), "failure", w.o.Failure, "error", err)
	}
}

// ask makes one request, when there is a place for it. Only then is there the JSON of the question,
// which may have six times as many bytes as the CONNECT.
func (w *Webhook) ask(q *Question) (answer *Answer, size int, err error) {
	ctx, cancel := context.WithTimeout(w.ended, w.o.Timeout)
	defer cancel()
	select {
	case w.places <- struct{}{}:
	default:
		if err := w.await(ctx); err != nil {
			return nil, 0, err
		}
	}
	began := time.Now()
	if text, fault := json.Marshal(q); fault == nil {
		answer, size, err = w.request(ctx, text)
	} else {
		err = fault
	}
	w.latency.Observe(int64(time.Since(began)))
	<-w.places
	return answer, size, err
}

// await waits for a place.
func (w *Webhook) await(ctx context.Context) error {
	defer w.waiting.Add(-1)
	if w.waiting.Add(1) > int64(w.o.Queue) {
		return errBusy
	}
	select {
	case w.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("there was no place for the question: %w", ctx.Err())
	}
}

// request asks over HTTP.
func (w *Webhook) request(ctx context.Context, text []byte) (*Answer, int, error) {
	l := w.line.Load()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.o.URL, bytes.NewReader(text))
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "holdfast")
	if l.name != "" {
		r.Header.Set(l.name, l.value)
		if strings.EqualFold(l.name, "Host") {
			r.Host = l.value
		}
	}
	response, err := l.client.Do(r)
	if err != nil {
		return nil, 0, secrets.OfRequest(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		_, _ = io.CopyN(io.Discard, response.Body, maxAnswer) // so that the connection can be used again
		return nil, 0, fmt.Errorf("the status of the answer is %d", response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, 0, err
	}
	answer, err := parse(body, w.checkRules)
	return answer, len(body), err
}

// Figures are what a Webhook has counted.
type Figures struct {
	Outcomes          [numOutcomes]int64
	Latency           histogram.Snapshot // of requests, in ns
	UnderWay, Waiting int64              // questions
	Answers, Bytes    int64              // that are remembered
	MaxBytes          int64              // of them
	Failing           bool               // the last question had no answer
}

// Outcomes are all of them, as Figures.Outcomes numbers them.
func Outcomes() (all []Outcome) {
	for o := range numOutcomes {
		all = append(all, o)
	}
	return all
}

// Figures gives what has been counted.
func (w *Webhook) Figures() (f Figures) {
	for i := range f.Outcomes {
		f.Outcomes[i] = w.outcomes[i].Load()
	}
	f.Latency, f.UnderWay, f.Waiting, f.Failing = w.latency.Read(), int64(len(w.places)), w.waiting.Load(), w.failing.Load()
	f.Answers, f.Bytes = w.answers.size()
	f.MaxBytes = w.o.MaxBytes
	return f
}
