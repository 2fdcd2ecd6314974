package stream

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/trace"
)

const deadline = time.Minute

// serving is a server of traces, and a channel that ends it.
func serving(t *testing.T) (s *Server, url string, stop chan struct{}) {
	t.Helper()
	stop = make(chan struct{})
	s = &Server{Tracer: new(trace.Tracer), Connected: func(id string) bool { return id == "here" }, Stop: stop, Log: slog.New(slog.DiscardHandler)}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return s, h.URL, stop
}

func get(t *testing.T, url string, q Request) io.ReadCloser {
	t.Helper()
	answer, err := http.Get(url + q.Target())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		t.Fatalf("%s: %s", answer.Status, text)
	}
	return answer.Body
}

func show(s *Server, client string) {
	s.Tracer.Packets().Packet(&trace.Packet{Client: client, Version: mqtt.V5, Bytes: mqtt.AppendPingresp(nil)})
}

func TestTraceEndsWithItsTimeAndWithTheServer(t *testing.T) {
	t.Parallel()
	for _, byTime := range []bool{true, false} {
		s, url, stop := serving(t)
		q := Request{Filter: trace.Filter{Client: "here", Rate: 2}, For: time.Hour}
		if byTime {
			q.For = time.Millisecond
		}
		var last Line
		lines := 0
		err := Read(get(t, url, q), func(l Line) error {
			last = l
			switch {
			case l.Begun && l.Away:
				t.Error("the client is said not to be connected")
			case l.Begun && !byTime:
				for range 5 {
					show(s, "here")
				}
			case strings.Contains(l.Line, "PINGRESP"):
				if lines++; lines == 2 {
					close(stop)
				}
			}
			return nil
		})
		if err != nil || !last.Done {
			t.Errorf("by its time %v: the last line is %+v, %v", byTime, last, err)
		}
		if !byTime && (lines < 2 || last.Seen != 5 || last.Dropped != 5-int64(lines)) {
			t.Errorf("%d lines of %d, %d dropped", lines, last.Seen, last.Dropped)
		}
		if s.Tracer.Packets() != nil {
			t.Error("the trace goes on")
		}
	}
}

func TestTraceSaysThatItsClientIsAway(t *testing.T) {
	t.Parallel()
	_, url, _ := serving(t)
	body := get(t, url, Request{Filter: trace.Filter{Client: "away", Rate: 1}, For: time.Hour})
	gone := errors.New("gone")
	if err := Read(body, func(l Line) error {
		if !l.Begun || !l.Away {
			t.Errorf("the first line is %+v", l)
		}
		return gone
	}); !errors.Is(err, gone) {
		t.Error(err)
	}
}

// The trace of a reader that takes nothing ends, and those that give it lines never wait.
func TestTraceWhoseReaderStandsStillEnds(t *testing.T) {
	t.Parallel()
	s := &Server{Tracer: new(trace.Tracer), Connected: func(string) bool { return true }, Stop: t.Context().Done(), Log: slog.New(slog.DiscardHandler), Patience: time.Millisecond}
	ended := make(chan struct{})
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	conn, err := net.Dial("tcp", h.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	q := Request{Filter: trace.Filter{Client: "here", Rate: trace.MaxRate}, For: time.Hour}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", q.Target())
	packet := mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{Topic: []byte(strings.Repeat("t", 10_000))})
	for end := time.Now().Add(deadline); ; {
		select {
		case <-ended:
			if s.Tracer.Packets() != nil {
				t.Error("the trace has packets after its end")
			}
			return
		default:
			s.Tracer.Packets().Packet(&trace.Packet{Client: "here", Version: mqtt.V5, Bytes: packet})
		}
		if time.Now().After(end) {
			t.Fatal("the trace goes on")
		}
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	s, url, stop := serving(t)
	defer close(stop)
	refused := func(target, part string) {
		t.Helper()
		answer, err := http.Get(url + target)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), part) {
			t.Errorf("%s: %s %s, want %q", target, answer.Status, text, part)
		}
	}
	ask := func(f trace.Filter, d time.Duration) string { q := Request{f, d}; return q.Target() }
	refused(Path, "invalid syntax")
	refused(ask(trace.Filter{Rate: 1}, time.Second), "name a client")
	refused(ask(trace.Filter{Key: "*", Rate: 1}, 0), "a trace takes")
	refused(ask(trace.Filter{Key: "*", Rate: 1}, trace.MaxFor+1), "a trace takes")
	for i := range trace.MaxTraces {
		if _, err := s.Tracer.Start(trace.Filter{Client: fmt.Sprint(i), Rate: 1}); err != nil {
			t.Fatal(err)
		}
	}
	refused(ask(trace.Filter{Key: "*", Rate: 1}, time.Second), "traces run already")
}
