package httpin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/httpin"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

var quiet = client.WithLogger(slog.New(slog.DiscardHandler))

func dial(t *testing.T, addr string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), addr, append([]client.Option{quiet, client.WithBackoff(time.Millisecond, 20*time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func serve(t *testing.T, c *client.Client, opts ...httpin.Option) *httptest.Server {
	t.Helper()
	h, err := httpin.New(c, "shop", httpin.Topic("orders"), append([]httpin.Option{httpin.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// subscriber collects what is published to orders.
func subscriber(t *testing.T, addr string) <-chan client.Message {
	t.Helper()
	s, err := client.DialSession(t.Context(), addr, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Subscribe(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	received := make(chan client.Message, 1000)
	go func() {
		for d, err := range s.Messages(t.Context()) {
			if err != nil {
				return
			}
			d.Ack()
			received <- d.Message
		}
	}()
	return received
}

func next(t *testing.T, received <-chan client.Message) client.Message {
	t.Helper()
	select {
	case m := <-received:
		return m
	case <-time.After(30 * time.Second):
		t.Fatal("no message came")
		return client.Message{}
	}
}

func post(t *testing.T, url, key, body string, header ...string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set(httpin.KeyHeader, key)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(b)
}

func Example() {
	ctx := context.Background()
	c, err := client.Dial(ctx, testserver.ForExample())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	h, err := httpin.New(c, "shop", httpin.Topic("orders"))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 { // the second time, nothing is published
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{"apples":3}`))
		r.Header.Set(httpin.KeyHeader, "4711")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 202 {"source":"shop","id":"4711","topic":"orders"}
	// 202 {"source":"shop","id":"4711","topic":"orders"}
}

// Many requests with one key, at once and later, publish one message and get one answer.
func TestPublishedOnce(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	received := subscriber(t, addr)
	first, second := serve(t, dial(t, addr)), serve(t, dial(t, addr)) // two instances
	answers := make(chan string, 100)
	var posts sync.WaitGroup
	for i := range 20 {
		posts.Go(func() {
			url := []string{first.URL, second.URL}[i%2]
			status, answer := post(t, url, "4711", `{"apples":3}`, "Content-Type", "application/json", "Traceparent", "00-a-b-01")
			answers <- fmt.Sprint(status, answer)
		})
	}
	posts.Wait()
	status, answer := post(t, first.URL, `"4711"`, `{"apples":3}`, "Content-Type", "application/json")
	answers <- fmt.Sprint(status, answer)
	close(answers)
	for answer := range answers {
		if answer != `202 {"source":"shop","id":"4711","topic":"orders"}`+"\n" && answer != `202{"source":"shop","id":"4711","topic":"orders"}`+"\n" {
			t.Errorf("answered %q", answer)
		}
	}
	post(t, second.URL, "end", "")
	m := next(t, received)
	id, _ := m.UserProperties.Get("id")
	source, _ := m.UserProperties.Get("source")
	kind, _ := m.UserProperties.Get("type")
	trace, _ := m.UserProperties.Get("traceparent")
	if string(m.Payload) != `{"apples":3}` || m.ContentType != "application/json" || id != "4711" || source != "shop" || kind != "http.post" || trace != "00-a-b-01" {
		t.Errorf("published %+v", m)
	}
	if id, _ := next(t, received).UserProperties.Get("id"); id != "end" {
		t.Errorf("the message was published again: %s", id)
	}
}

// A key that is used for something else is refused, and publishes nothing.
func TestKeyOfAnotherRequest(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	received := subscriber(t, addr)
	s := serve(t, dial(t, addr))
	post(t, s.URL, "1", "a", "Content-Type", "text/plain")
	for _, other := range [][]string{{"b", "Content-Type", "text/plain"}, {"a", "Content-Type", "text/html"}} {
		if status, answer := post(t, s.URL, "1", other[0], other[1:]...); status != http.StatusUnprocessableEntity || !strings.Contains(answer, "was used for another request") {
			t.Errorf("%q: %d %s", other, status, answer)
		}
	}
	post(t, s.URL, "end", "end")
	next(t, received)
	if m := next(t, received); string(m.Payload) != "end" {
		t.Errorf("published %q", m.Payload)
	}
}

// Each request that is not right is refused with the status and the reason.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	received := subscriber(t, addr)
	c := dial(t, addr)
	s := serve(t, c, httpin.WithMaxBody(10), httpin.WithValidation(func(_ *http.Request, body []byte) error {
		if string(body) == "bad" {
			return errors.New("it is bad")
		}
		return nil
	}))
	for _, test := range []struct {
		key, body string
		header    []string
		status    int
		want      string
	}{
		{"", "a", nil, 400, "has 0 headers"},
		{"1", "a", []string{httpin.KeyHeader, "2"}, 400, "has 2 headers"},
		{strings.Repeat("x", 256), "a", nil, 400, "has 256 characters"},
		{`""`, "a", nil, 400, "has 0 characters"},
		{"a b", "a", nil, 400, "visible ones"},
		{"1", strings.Repeat("x", 11), nil, 413, "larger than 10 bytes"},
		{"1", "bad", nil, 400, "not valid: it is bad"},
		{"1", "a", []string{"Content-Type", strings.Repeat("x", 256)}, 400, "256 bytes"},
		{"1", "a", []string{"Content-Type", "\xFF"}, 400, "must be a text"},
		{"1", "a", []string{"X-Large", strings.Repeat("x", 40<<10)}, 202, ""}, // httptest's server has another bound
		{strings.Repeat("x", 255), strings.Repeat("x", 10), []string{"Content-Type", strings.Repeat("x", 255)}, 202, ""},
	} {
		if status, answer := post(t, s.URL, test.key, test.body, test.header...); status != test.status || !strings.Contains(answer, test.want) {
			t.Errorf("%.20q, %.20q, %.20q: %d %s, want %d %s", test.key, test.body, test.header, status, answer, test.status, test.want)
		}
	}
	next(t, received)
	next(t, received) // the two that are right

	unknown := errors.New("there is no such shop")
	h, err := httpin.New(c, "paths", func(r *http.Request) (string, error) {
		if r.URL.Path == "/unknown" {
			return "", unknown
		}
		return strings.TrimPrefix(r.URL.Path, "/"), nil
	}, httpin.WithScope(func(r *http.Request) (string, error) {
		if user := r.Header.Get("User"); user != "" {
			return user, nil
		}
		return "", errors.New("who are you?")
	}))
	if err != nil {
		t.Fatal(err)
	}
	paths := httptest.NewServer(h)
	defer paths.Close()
	for path, want := range map[string]string{"/unknown": "404 there is no such shop", "/a/+": "400 the request is for the topic", "/a/b": `202 {"source":"paths","id":"ann/1","topic":"a/b"}`} {
		if status, answer := post(t, paths.URL+path, "1", "a", "User", "ann"); !strings.HasPrefix(fmt.Sprint(status, " ", answer), want) {
			t.Errorf("%s: %d %s, want %s", path, status, answer, want)
		}
	}
	if status, answer := post(t, paths.URL+"/a/b", "1", "something else", "User", "bob"); status != 202 {
		t.Errorf("the same key of another user: %d %s", status, answer)
	}
	for _, r := range []struct{ user, key, id string }{{"ann/x", "1", "ann%2Fx/1"}, {"ann", "x/1", "ann/x/1"}} {
		if status, answer := post(t, paths.URL+"/a/b", r.key, r.user, "User", r.user); status != 202 || !strings.Contains(answer, r.id) {
			t.Errorf("the key %s of %s: %d %s, want the ID %s", r.key, r.user, status, answer, r.id)
		}
	}
	if status, answer := post(t, paths.URL+"/a/b", "1", "a"); status != 400 || !strings.Contains(answer, "who are you?") {
		t.Errorf("without a user: %d %s", status, answer)
	}
	response, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusMethodNotAllowed || response.Header.Get("Allow") != "POST" {
		t.Errorf("GET: %s, Allow %q", response.Status, response.Header.Get("Allow"))
	}
}

// The handler's own server bounds the head of a request.
func TestServerBoundsTheHead(t *testing.T) {
	t.Parallel()
	h, err := httpin.New(dial(t, testserver.Start(t).Addr), "shop", httpin.Topic("orders"))
	if err != nil {
		t.Fatal(err)
	}
	s := h.Server("")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	url := "http://" + listener.Addr().String()
	if status, _ := post(t, url, "1", "a", "X", strings.Repeat("x", 15<<10)); status != http.StatusAccepted {
		t.Errorf("within the bound: %d", status)
	}
	if status, _ := post(t, url, "2", "a", "X", strings.Repeat("x", 32<<10)); status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("above the bound: %d", status)
	}
	_ = s.Close()
	<-served
}

// A request that can't be published now may be sent again, and is published once.
func TestServerIsAway(t *testing.T) {
	t.Parallel()
	addr := testserver.FreeAddress()
	broker := testserver.Start(t, func(c *server.Config) { c.Listen = []string{addr} })
	c := dial(t, addr)
	s, soon := serve(t, c), serve(t, c, httpin.WithTimeout(50*time.Millisecond))
	broker.Stop()
	status, answer := post(t, soon.URL, "1", "a")
	if status != http.StatusServiceUnavailable || !strings.Contains(answer, "send the same request again") {
		t.Errorf("%d %s", status, answer)
	}
	broker.StartAgain()
	received := subscriber(t, addr)
	for range 2 {
		if status, answer := post(t, s.URL, "1", "a"); status != http.StatusAccepted {
			t.Errorf("%d %s", status, answer)
		}
	}
	post(t, s.URL, "end", "end")
	next(t, received)
	if m := next(t, received); string(m.Payload) != "end" {
		t.Errorf("published %q, too", m.Payload)
	}
}

// Requests above the bound are told to come again.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	s := serve(t, dial(t, testserver.Start(t).Addr), httpin.WithConcurrency(1), httpin.WithValidation(func(_ *http.Request, body []byte) error {
		if string(body) == "slow" {
			close(begun)
			<-goOn
		}
		return nil
	}))
	var slow sync.WaitGroup
	slow.Go(func() {
		if status, answer := post(t, s.URL, "1", "slow"); status != http.StatusAccepted {
			t.Errorf("the first: %d %s", status, answer)
		}
	})
	<-begun
	if status, _ := post(t, s.URL, "2", "a"); status != http.StatusServiceUnavailable {
		t.Errorf("above the bound: %d", status)
	}
	close(goOn)
	slow.Wait()
}

func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	topic := httpin.Topic("orders")
	for want, build := range map[string]func() (*httpin.Handler, error){
		"the name is":     func() (*httpin.Handler, error) { return httpin.New(nil, "a/b", topic) },
		"client is nil":   func() (*httpin.Handler, error) { return httpin.New(nil, "a", topic) },
		"topic is nil":    func() (*httpin.Handler, error) { return httpin.New(nil, "a", nil) },
		"WithSource":      func() (*httpin.Handler, error) { return httpin.New(nil, "a", topic, httpin.WithSource("")) },
		"WithType":        func() (*httpin.Handler, error) { return httpin.New(nil, "a", topic, httpin.WithType("\x00")) },
		"WithMaxBody":     func() (*httpin.Handler, error) { return httpin.New(nil, "a", topic, httpin.WithMaxBody(0)) },
		"WithKeep":        func() (*httpin.Handler, error) { return httpin.New(nil, "a", topic, httpin.WithKeep(0)) },
		"WithTimeout":     func() (*httpin.Handler, error) { return httpin.New(nil, "a", topic, httpin.WithTimeout(0)) },
		"WithConcurrency": func() (*httpin.Handler, error) { return httpin.New(nil, "a", topic, httpin.WithConcurrency(0)) },
		"WithLogger":      func() (*httpin.Handler, error) { return httpin.New(nil, "a", topic, httpin.WithLogger(nil)) },
	} {
		if _, err := build(); !errors.Is(err, client.ErrInvalidOption) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A key and a scope that together are more than processors take.
func TestLongScope(t *testing.T) {
	t.Parallel()
	c, err := client.Dial(t.Context(), testserver.Start(t).Addr, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	s := serve(t, c, httpin.WithScope(func(r *http.Request) (string, error) { return r.Header.Get("Client"), nil }))
	longest := 1024 - len("event:4:shop") - len("/key")
	for bytes, want := range map[int]int{longest: http.StatusAccepted, longest + 1: http.StatusBadRequest} {
		if status, answer := post(t, s.URL, "key", "{}", "Client", strings.Repeat("c", bytes)); status != want {
			t.Errorf("a scope of %d bytes: %d %s", bytes, status, answer)
		}
	}
}
