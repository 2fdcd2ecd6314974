package admin

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// serveBounded serves a handler within the bounds of connections. dial connects to it and sends a request;
// turned is how many connections were closed beyond MaxConnections.
func serveBounded(t *testing.T, handler http.HandlerFunc) (dial func(request string) net.Conn, turned *atomic.Int64) {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	turned = new(atomic.Int64)
	server := &http.Server{ConnContext: withConn, ConnState: noteIdle, Handler: serving(handler)}
	go server.Serve(&bounded{Listener: tcp, turned: turned, waiting: sockets.NewHandshakes(MaxWaiting)})
	t.Cleanup(func() { _ = server.Close() })
	return func(request string) net.Conn {
		nc, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		_ = nc.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(nc, request)
		return nc
	}, turned
}

const get = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

// Requests are served on up to MaxConnections connections at a time, and one more is closed.
func TestConnectionsThatServeAreBounded(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	began := make(chan struct{}, MaxConnections)
	dial, turned := serveBounded(t, func(http.ResponseWriter, *http.Request) {
		began <- struct{}{}
		<-end
	})
	answer := func(nc net.Conn) (string, error) { return bufio.NewReader(nc).ReadString('\n') }

	var open []net.Conn
	for range MaxConnections {
		open = append(open, dial(get))
		<-began
	}
	if line, err := answer(dial(get)); err == nil {
		t.Errorf("one connection more was answered: %q", line)
	}
	if n := turned.Load(); n != 1 {
		t.Errorf("%d connections were turned away, want 1", n)
	}
	close(end)
	for i, nc := range open {
		if line, err := answer(nc); err != nil || line != "HTTP/1.1 200 OK\r\n" {
			t.Errorf("connection %d: %q, %v", i+1, line, err)
		}
	}
}

// Requests whose body does not come keep no other client out, also when their handler waits for it. A
// refusal does not wait for the body.
func TestBodiesThatNeverComeKeepNoClientOut(t *testing.T) {
	t.Parallel()
	began := make(chan struct{}, 1)
	dial, _ := serveBounded(t, func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		if r.URL.Path == "/read" {
			_, _ = io.Copy(w, r.Body)
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
	})
	ask := func(request string) net.Conn {
		nc := dial(request)
		select {
		case <-began:
		case <-time.After(30 * time.Second):
			t.Fatalf("no handler got the request: %q", request)
		}
		return nc
	}
	mustAnswer := func(what string, nc net.Conn, status string) {
		t.Helper()
		if line, err := bufio.NewReader(nc).ReadString('\n'); err != nil || line != "HTTP/1.1 "+status+"\r\n" {
			t.Errorf("%s: %q, %v, want %s", what, line, err, status)
		}
	}
	const never = " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc"
	for _, path := range []string{"/read", "/refused"} {
		for range MaxConnections {
			ask("POST " + path + never)
		}
		mustAnswer("one client more than MaxConnections", ask(get), "401 Unauthorized")
	}
	mustAnswer("a request that is refused before its body came", ask("POST /refused"+never), "401 Unauthorized")

	// A connection whose request is there, with its body, does not wait, and stays.
	reads := ask("POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nab")
	mustAnswer("a request with its body", reads, "200 OK")
}

// A client may send its next request over the same connection, unless the answer says that it is the last:
// one that came before the body was read.
func TestAnswersBeforeTheBodyAreTheLast(t *testing.T) {
	t.Parallel()
	const post = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nnull"
	for name, read := range map[string]bool{"the body is read": true, "it is not": false} {
		dial, _ := serveBounded(t, func(w http.ResponseWriter, r *http.Request) {
			if read {
				_, _ = io.ReadAll(r.Body)
			}
			_, _ = io.WriteString(w, "answer")
		})
		nc := dial(post)
		answers := bufio.NewReader(nc)
		for range 3 {
			answer, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "answer" {
				t.Errorf("%s: %q, %v", name, text, err)
			}
			if answer.Close != !read {
				t.Errorf("%s: the answer says %v of whether it is the last", name, answer.Close)
			}
			if answer.Close {
				break
			}
			_, _ = io.WriteString(nc, post)
		}
	}
}
