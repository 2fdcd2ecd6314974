package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

// site is a webhook's server, whose answer a test sets, and a Webhook that asks it.
type site struct {
	*Webhook
	t        *testing.T
	server   *httptest.Server
	requests atomic.Int64
	answer   atomic.Pointer[http.HandlerFunc]
	elapsed  atomic.Int64 // ns that the Webhook's clock is ahead of the machine's
	log      strings.Builder
}

// newSite starts both. What change leaves zero is generous, so that a busy machine is no
// failure.
func newSite(t *testing.T, change func(o *Options)) *site {
	t.Helper()
	s := &site{t: t}
	s.says(`{"result":"allow"}`)
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		(*s.answer.Load())(w, r)
	}))
	t.Cleanup(s.server.Close)
	o := Options{URL: s.server.URL + "/auth", Timeout: time.Minute}
	if change != nil {
		change(&o)
	}
	began := time.Now()
	w, err := New(o, nil, slog.New(slog.NewTextHandler(&s.log, nil)), func() time.Time { return began.Add(time.Duration(s.elapsed.Load())) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	s.Webhook = w
	return s
}

// says sets what the server answers.
func (s *site) says(text string) {
	s.does(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

func (s *site) does(h http.HandlerFunc) { s.answer.Store(&h) }

// ask asks about a client, and gives the result or the error as a text.
func (s *site) ask(client string) string {
	a, err := s.Ask(&Question{ClientID: client, Username: "alice", Password: "secret", Remote: "192.0.2.1:50000", Protocol: "5"})
	if err != nil {
		return err.Error()
	}
	return a.Result
}

// want checks how many requests the server has got.
func (s *site) want(requests int64) {
	s.t.Helper()
	if n := s.requests.Load(); n != requests {
		s.t.Errorf("the server has got %d requests, want %d", n, requests)
	}
}

// The server gets the question as JSON, with the header of the file.
func TestQuestion(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "header")
	if err := os.WriteFile(file, []byte("Authorization: Bearer s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSite(t, func(o *Options) { o.HeaderFile = file })
	got := make(chan string, 1)
	s.does(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- fmt.Sprintln(r.Method, r.URL.Path, r.Header.Get("Content-Type"), r.Header.Get("Authorization"), string(body))
		_, _ = io.WriteString(w, `{"result":"allow","username":"bob","attributes":{"role":"press"},"rules":{"publish":["a/#"]},"expires":4102444800}`)
	})
	a, err := s.Ask(&Question{ClientID: "c", Username: "alice", PasswordBase64: []byte{0xff}, Remote: "192.0.2.1:1", Protocol: "3.1.1", Listener: "mqtts://h:1", CertificateCN: "cn"})
	if err != nil {
		t.Fatal(err)
	}
	const want = `POST /auth application/json Bearer s3cret {"client_id":"c","username":"alice","password_base64":"/w==","remote":"192.0.2.1:1","protocol":"3.1.1","listener":"mqtts://h:1","certificate_cn":"cn"}` + "\n"
	if text := <-got; text != want {
		t.Errorf("%s, want %s", text, want)
	}
	if a.Username != "bob" || a.Attributes["role"] != "press" || a.Rules.Publish[0] != "a/#" || a.Until() != time.Unix(4102444800, 0) {
		t.Errorf("%+v", a)
	}
}

// An answer is remembered for its time, by all of the question but the client's port, until
// Reload; what a failure was is not.
func TestAnswersAreRemembered(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(o *Options) { o.Remember, o.Denied = time.Minute, time.Second })
	for range 3 {
		if got := s.ask("a"); got != Allowed {
			t.Fatal(got)
		}
	}
	s.want(1)
	s.ask("b")
	s.want(2)
	other, err := s.Ask(&Question{ClientID: "a", Username: "alice", Password: "secret", Remote: "192.0.2.1:50001", Protocol: "5"})
	if err != nil || other.Result != Allowed {
		t.Error(other, err)
	}
	s.want(2)
	if _, err := s.Ask(&Question{ClientID: "a", Username: "alice", Password: "wrong", Remote: "192.0.2.1:50001", Protocol: "5"}); err != nil {
		t.Error(err)
	}
	s.want(3)
	s.elapsed.Add(int64(time.Minute))
	s.ask("a")
	s.want(4)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	s.ask("a")
	s.want(5)

	s.says(`{"result":"deny"}`)
	for range 2 {
		if got := s.ask("c"); got != Denied {
			t.Error(got)
		}
	}
	s.want(6)
	s.elapsed.Add(int64(time.Second))
	s.says(`{"result":"ignore"}`)
	for range 2 {
		if got := s.ask("c"); got != Ignored {
			t.Error(got)
		}
	}
	s.want(7)
	f := s.Figures()
	if f.Outcomes[WasAllowed] != 5 || f.Outcomes[WasDenied] != 1 || f.Outcomes[WasIgnored] != 1 || f.Outcomes[WasRemembered] != 5 || f.Latency.Count != 7 {
		t.Errorf("%+v", f)
	}
}

// An answer is not remembered for longer than the client may stay.
func TestRememberedUntilItExpires(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(o *Options) { o.Remember = 24 * time.Hour })
	s.says(fmt.Sprintf(`{"result":"allow","expires":%d}`, time.Now().Unix()+3600))
	s.ask("a")
	s.ask("a")
	s.want(1)
	s.elapsed.Store(int64(2 * time.Hour))
	s.ask("a")
	s.want(2)
}

// The bytes of remembered answers have a bound: at it all are there, and one above it takes the
// place of the one that was asked for longest ago.
func TestRememberedBytesAreBounded(t *testing.T) {
	t.Parallel()
	const fits = 1000
	each := int64(aroundAnswer + answerInMemory*len(`{"result":"allow"}`))
	s := newSite(t, func(o *Options) { o.MaxBytes, o.Remember = fits*each, time.Hour })
	for i := range fits {
		s.ask(fmt.Sprint("client", i))
	}
	if f := s.Figures(); f.Answers != fits || f.Bytes != f.MaxBytes {
		t.Fatalf("%d answers with %d of %d bytes", f.Answers, f.Bytes, f.MaxBytes)
	}
	s.ask("client0") // so that client1 is the one for which nothing has asked for longest
	s.want(fits)
	s.ask("one more")
	if f := s.Figures(); f.Answers != fits || f.Bytes != f.MaxBytes {
		t.Errorf("%d answers with %d of %d bytes", f.Answers, f.Bytes, f.MaxBytes)
	}
	s.want(fits + 1)
	s.ask("client0")
	s.want(fits + 1)
	s.ask("client1")
	s.want(fits + 2)
}

// What is no answer is a failure, which is not remembered and is logged once until the webhook
// answers again. No password is in the log.
func TestFailures(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, `{"result":"allow"}`)
		}
	}
	text := func(answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }
	}
	failures := []struct {
		name, want string
		answer     http.HandlerFunc
	}{
		{"500", "the status of the answer is 500", status(500)},
		{"401", "the status of the answer is 401", status(401)},
		{"204", "the status of the answer is 204", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }},
		{"a redirect is not followed", "the status of the answer is 307", status(307)},
		{"no JSON", "not the JSON", text("<html>")},
		{"an empty answer", "not the JSON", text("")},
		{"an unknown field", `unknown field "ruls"`, text(`{"result":"allow","ruls":{}}`)},
		{"a field of another type", "cannot unmarshal", text(`{"result":true}`)},
		{"two answers", "goes on behind", text(`{"result":"allow"}{"result":"deny"}`)},
		{"an unknown result", `the answer's result is "yes"`, text(`{"result":"yes"}`)},
		{"a negative time", "expires is below 0", text(`{"result":"allow","expires":-1}`)},
		{"a time in milliseconds", "want seconds since 1970", text(`{"result":"allow","expires":1798761600000}`)},
		{"a time beyond the calendar", "want seconds since 1970", text(`{"result":"allow","expires":253402300800}`)},
		{"a user name that MQTT cannot carry", "control character", text(`{"result":"allow","username":"a\u0000b"}`)},
		{"a user name that is not UTF-8", "not UTF-8 at byte 32", text("{\"result\":\"allow\",\"username\":\"a\xff\"}")},
		{"half of a surrogate pair", "no character", text(`{"result":"allow","attributes":{"role":"\ud800"}}`)},
		{"a longer answer than may be", "more than 64 KiB", text(`{"result":"allow"}` + strings.Repeat(" ", maxAnswer-len(`{"result":"allow"}`)+1))},
		{"an endless answer", "more than 64 KiB", func(w http.ResponseWriter, r *http.Request) {
			for {
				if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
					return
				}
			}
		}},
		{"a lost connection", "EOF", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		{"more rules than may be", "1001 topic filters", text(`{"result":"allow","rules":{"read":["x"` + strings.Repeat(`,"x"`, MaxRules) + `]}}`)},
	}
	for i, f := range failures {
		s.does(f.answer)
		if got := s.ask("a"); !strings.Contains(got, f.want) {
			t.Errorf("%s: %s, want %s", f.name, got, f.want)
		}
		s.want(int64(i + 1))
	}
	n := int64(len(failures))
	if f := s.Figures(); f.Outcomes[Failed] != n || !f.Failing || f.Answers != 0 {
		t.Errorf("%+v", f)
	}
	s.says(`{"result":"allow"}` + strings.Repeat(" ", maxAnswer-len(`{"result":"allow"}`))) // as long as may be
	if got := s.ask("a"); got != Allowed {
		t.Error(got)
	}
	s.says(fmt.Sprintf(`{"result":"allow","expires":%d}`, maxExpires)) // the latest that may be
	if got := s.ask("latest"); got != Allowed {
		t.Error(got)
	}
	if s.Figures().Failing {
		t.Error("the webhook still counts as failing")
	}
	s.says("")
	s.ask("b")
	log := s.log.String()
	if strings.Count(log, "does not answer as it must") != 2 || strings.Count(log, "answers again") != 1 || strings.Contains(log, "secret") {
		t.Error(log)
	}
}

// A server that is not there is a failure, and so is one that does not answer in time. What follows the
// host in the URL is not in the log: it may be a secret.
func TestDeadAndSlowServers(t *testing.T) {
	t.Parallel()
	dead := newSite(t, func(o *Options) { o.URL += "/secret?token=secret" })
	dead.server.Close()
	if got := dead.ask("a"); got == Allowed || strings.Contains(got, "secret") {
		t.Error(got)
	}
	if log := dead.log.String(); strings.Contains(log, "secret") || !strings.Contains(log, "http://127.0.0.1") || !strings.Contains(log, "/…") {
		t.Error(log)
	}
	if f := dead.Figures(); f.Outcomes[Failed] != 1 {
		t.Errorf("%+v", f)
	}

	slow := newSite(t, func(o *Options) { o.Timeout = 50 * time.Millisecond })
	released := make(chan struct{})
	t.Cleanup(func() { close(released) }) // before the server is closed, which waits for its answers
	slow.does(func(http.ResponseWriter, *http.Request) { <-released })
	if got := slow.ask("a"); got == Allowed {
		t.Error(got)
	}
	if f := slow.Figures(); f.Outcomes[TimedOut] != 1 || !f.Failing {
		t.Errorf("%+v", f)
	}
}

// So many questions are under way as there are places, so many wait, and one more is refused
// at once. Close ends all of them.
func TestQuestionsAreBounded(t *testing.T) {
	t.Parallel()
	const places, queue = 2, 3
	s := newSite(t, func(o *Options) { o.Requests, o.Queue = places, queue })
	released := make(chan struct{})
	t.Cleanup(func() { close(released) })
	s.does(func(http.ResponseWriter, *http.Request) { <-released })
	answers := make(chan string, places+queue)
	until := func(what string, done func(f Figures) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !done(s.Figures()); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("waited in vain for %s: %+v", what, s.Figures())
			}
		}
	}
	ask := func(n int) {
		for i := range n {
			go func() { answers <- s.ask(fmt.Sprint(i)) }()
		}
	}
	ask(places)
	until("the places", func(f Figures) bool { return f.UnderWay == places })
	ask(queue)
	until("the queue", func(f Figures) bool { return f.Waiting == queue })
	_, err := s.Ask(&Question{ClientID: "one more"})
	if !Busy(err) {
		t.Errorf("one question more: %v", err)
	}
	if f := s.Figures(); f.Outcomes[WasBusy] != 1 || f.Waiting != queue {
		t.Errorf("%+v", f)
	}
	s.Close()
	for range places + queue {
		if got := <-answers; !strings.Contains(got, "context canceled") {
			t.Error(got)
		}
	}
}

// A question that waits for a place holds what the client has sent, and not its JSON, which is six
// times as large for some passwords. Not parallel: it measures the heap.
func TestWaitingQuestionsAreSmall(t *testing.T) {
	const queue, size = 50, 64 << 10
	s := newSite(t, func(o *Options) { o.Requests, o.Queue = 1, queue })
	asked, released := make(chan struct{}, 1), make(chan struct{})
	s.does(func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-released })
	t.Cleanup(func() { close(released) })
	t.Cleanup(s.Close)
	go s.ask("first")
	<-asked
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, password := heap(), strings.Repeat("\x01", size)
	for range queue {
		go func() { _, _ = s.Ask(&Question{Password: password}) }()
	}
	for end := time.Now().Add(time.Minute); s.Figures().Waiting < queue; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for the queue: %+v", s.Figures())
		}
	}
	if grown := heap() - before; grown > queue*size*3 {
		t.Errorf("%d questions of %d bytes hold %d", queue, size, grown)
	}
}

// An answer to a question from before Reload is not remembered.
func TestReloadForgetsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	asked, released := make(chan struct{}), make(chan struct{})
	s.does(func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-released
		_, _ = io.WriteString(w, `{"result":"allow"}`)
	})
	answer := make(chan string)
	go func() { answer <- s.ask("a") }()
	<-asked
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	close(released)
	if got := <-answer; got != Allowed {
		t.Error(got)
	}
	s.says(`{"result":"deny"}`)
	if got := s.ask("a"); got != Denied {
		t.Error(got)
	}
}

// The rules of an answer are checked.
func TestRulesAreChecked(t *testing.T) {
	t.Parallel()
	check := func(*access.Rules) error { return errors.New("this is no filter") }
	for text, fails := range map[string]bool{`{"result":"allow","rules":{"read":["["]}}`: true, `{"result":"allow"}`: false} {
		if _, err := parse([]byte(text), check); (err != nil) != fails {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What is wrong with the options is said by the names of the settings.
func TestMistakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const url = "https://auth.example.com/"
	for want, o := range map[string]Options{
		"want a URL":                  {URL: "auth.example.com"},
		"has a user name":             {URL: "https://a:b@auth.example.com/"},
		"has a #":                     {URL: url + "#x"},
		"need an https:// URL":        {URL: "http://auth.example.com/", CA: "x"},
		"go together":                 {URL: url, Cert: "x"},
		"need --webhook URL":          {CA: "x"},
		"below 0":                     {URL: url, Queue: -1},
		"want deny or ignore":         {URL: url, Failure: "allow"},
		"header:1: want a header":     {URL: url, HeaderFile: write("header", "Bearer x\n")},
		"two:1: want a header":        {URL: url, HeaderFile: write("two", "A B: x\n")},
		"there is no certificate":     {URL: url, CA: write("ca", "x")},
		"--webhook-header-file: open": {URL: url, HeaderFile: filepath.Join(dir, "none")},
	} {
		if _, err := New(o, nil, slog.New(slog.DiscardHandler), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
	if err := new(Options).Check(); err != nil {
		t.Error(err)
	}
}

// Whatever a server answers is an answer or an error, and an answer is one of the three.
func FuzzParse(f *testing.F) {
	for _, text := range []string{`{"result":"allow","rules":{"read":["a"]},"attributes":{"a":"b"},"expires":1}`, `{}`, `[]`, `{"result":"deny"} x`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := parse(text, nil)
		if err != nil {
			return
		}
		again, err := json.Marshal(a)
		if err != nil || a.Result != Allowed && a.Result != Denied && a.Result != Ignored {
			t.Errorf("%s: %v", again, err)
		}
	})
}
