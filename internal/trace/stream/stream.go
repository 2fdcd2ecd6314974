// Package stream carries a trace over HTTP: what an operator asks of a server, and the lines
// of the answer. It knows no packet.
package stream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/trace"
)

// Path is where an operator traces a client or keys: GET, with a Request in the query; the
// answer is one Line per line as JSON, as things happen, the last one with Done. It ends with
// the time, with the request, and with the server.
const Path = "/v1/trace"

const defaultPatience = 10 * time.Second

// dropsEvery is how often a trace says how many lines were dropped.
const dropsEvery = time.Second

// Request says what is traced, and for how long.
type Request struct {
	trace.Filter
	For time.Duration // 1 ms to trace.MaxFor
}

func (q *Request) query() url.Values {
	return url.Values{
		"client": {q.Client}, "key": {q.Key}, "rate": {strconv.Itoa(q.Rate)}, "payload": {strconv.Itoa(q.Payload)},
		"for": {q.For.String()},
	}
}

// Target is the path of the request with its query.
func (q *Request) Target() string { return Path + "?" + q.query().Encode() }

func parseRequest(v url.Values) (q Request, err error) {
	q.Client, q.Key = v.Get("client"), v.Get("key")
	if q.Rate, err = strconv.Atoi(v.Get("rate")); err != nil {
		return q, err
	}
	if q.Payload, err = strconv.Atoi(v.Get("payload")); err != nil {
		return q, err
	}
	q.For, err = time.ParseDuration(v.Get("for"))
	if err == nil && (q.For < time.Millisecond || q.For > trace.MaxFor) {
		err = fmt.Errorf("a trace takes 1ms to %v", trace.MaxFor)
	}
	return q, err
}

// Line is what a trace has to say.
type Line struct {
	Line    string `json:",omitempty"` // of a packet or a command
	Begun   bool   `json:",omitempty"` // the trace has begun
	Away    bool   `json:",omitempty"` // when it began, the client was not connected
	Seen    int64  `json:",omitempty"` // packets or commands so far
	Dropped int64  `json:",omitempty"` // those of them that have no line
	Done    bool   `json:",omitempty"` // the trace is over
}

// Server serves traces.
type Server struct {
	Tracer    *trace.Tracer
	Connected func(clientID string) bool // whether a client is
	Stop      <-chan struct{}            // closed when the server ends
	Log       *slog.Logger
	Patience  time.Duration // how long a reader may take to take what is written to it; 0: 10 s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, err := parseRequest(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	t, err := s.Tracer.Start(q.Filter)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer t.End()
	s.Log.Info("an operator traces", "client", q.Client, "key", q.Key, "for", q.For)
	out := writer{lines: json.NewEncoder(w), control: http.NewResponseController(w), trace: t, patience: cmp.Or(s.Patience, defaultPatience)}
	ctx, cancel := context.WithTimeout(r.Context(), q.For)
	defer cancel()
	begun := Line{Begun: true, Away: q.Client != "" && !s.Connected(q.Client)}
	if out.write(begun) == nil && out.follow(ctx, s.Stop) == nil {
		_ = out.write(out.figures(Line{Done: true}))
	}
}

// writer writes what a trace has to say.
type writer struct {
	lines    *json.Encoder
	control  *http.ResponseController
	trace    *trace.Trace
	patience time.Duration
	dropped  int64 // that the operator knows of
}

// follow writes lines until ctx or the server ends. The error says that the operator has gone,
// or does not read.
func (o *writer) follow(ctx context.Context, stop <-chan struct{}) error {
	tick := time.NewTicker(dropsEvery)
	defer tick.Stop()
	for {
		select {
		case line := <-o.trace.Lines():
			if err := o.write(Line{Line: line}); err != nil {
				return err
			}
		case <-tick.C:
			if _, dropped := o.trace.Seen(); dropped > o.dropped {
				if err := o.write(o.figures(Line{})); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return o.rest()
		case <-stop:
			return o.rest()
		}
	}
}

// rest writes the lines that there are.
func (o *writer) rest() error {
	o.trace.End()
	for {
		select {
		case line := <-o.trace.Lines():
			if err := o.write(Line{Line: line}); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

func (o *writer) figures(l Line) Line {
	l.Seen, l.Dropped = o.trace.Seen()
	o.dropped = l.Dropped
	return l
}

// write writes a line, and has it leave unless another one follows at once.
func (o *writer) write(l Line) error {
	_ = o.control.SetWriteDeadline(time.Now().Add(o.patience))
	if err := o.lines.Encode(l); err != nil {
		return err
	}
	if len(o.trace.Lines()) > 0 && !l.Done {
		return nil
	}
	return o.control.Flush()
}

// Read calls each with the lines of an answer, the last time with Done. The error says that
// the answer ended before that, or is what each returns.
func Read(answer io.Reader, each func(Line) error) error {
	for lines := json.NewDecoder(answer); ; {
		var line Line
		switch err := lines.Decode(&line); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return errors.New("the server ended the trace")
		case err != nil:
			return fmt.Errorf("the server's answer cannot be understood: %w", err)
		}
		if err := each(line); err != nil || line.Done {
			return err
		}
	}
}
