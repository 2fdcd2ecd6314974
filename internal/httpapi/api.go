package httpapi

import (
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/audit"
	"github.com/holdfast-mqtt/holdfast/internal/broker/registry"
	"github.com/holdfast-mqtt/holdfast/internal/broker/reserved"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/policy"
	"github.com/holdfast-mqtt/holdfast/internal/units"
	"github.com/holdfast-mqtt/holdfast/internal/zipped"
)

// Prefix begins the paths of the API.
const Prefix = "/api/"

// Bounds of what requests may ask for and make the server hold.
const (
	AtOnce      = 8                // requests under way; others are refused (429)
	MaxPage     = 1000             // items of a page
	MaxDeleted  = 10_000           // retained messages that one request deletes
	defaultPage = 100              // items of a page, and messages deleted, without the parameter limit
	maxPageSize = 4 << 20          // bytes of the payloads in a page, but for the last one
	patience    = 30 * time.Second // until a request is answered whose work has not ended (503)
)

// Options of New. All but May, Audit, Policy and Cluster are needed; for an API of a node alone,
// of which OfNode says the paths, Sessions, Reserved and Watchers are not.
type Options struct {
	Sessions *registry.Registry
	Reserved reserved.Topics       // to which no administrator publishes
	May      access.Permissions    // nil: every client may do everything
	Audit    *audit.Log            // nil: none
	Policy   func() *policy.Policy // the file that is in force; nil: there is none
	Cluster  Reporter              // of the node; nil: the server is by itself
	Watchers func(key []byte, most int) (clients []string, all int)
	// AwaitRead waits until the server may answer from its memory; false: it will not, it is ending.
	// nil: it always may.
	AwaitRead func() bool
	Log       *slog.Logger
}

// API answers requests. Its methods are safe for concurrent use.
type API struct {
	o       Options
	mux     *http.ServeMux
	places  chan struct{}
	answers [6]atomic.Int64 // by the first digit of the status
}

// route is one path and method.
type route struct {
	method, path string
	query        []string // parameters that it takes
	body         bool     // it takes a body of JSON
	do           func(a *API, q *request) (answer any, err error)
}

var routes = []route{
	{method: "GET", path: "/api/v1/openapi.json", do: (*API).describe},
	{method: "GET", path: "/api/v1/clients", query: []string{"prefix", "connected", "limit", "after"}, do: (*API).listClients},
	{method: "GET", path: "/api/v1/clients/{id}", do: (*API).client},
	{method: "DELETE", path: "/api/v1/clients/{id}", query: []string{"session"}, do: (*API).endClient},
	{method: "GET", path: "/api/v1/subscriptions", query: []string{"client", "topic", "limit", "after"}, do: (*API).listSubscriptions},
	{method: "POST", path: "/api/v1/publish", body: true, do: (*API).publish},
	{method: "GET", path: "/api/v1/policy", query: []string{"client", "username", "attributes", "topic", "key"}, do: (*API).explain},
	{method: "GET", path: "/api/v1/watchers", query: []string{"key", "keysHex", "limit"}, do: (*API).listWatchers},
	{method: "GET", path: clusterPath, do: (*API).clusterStatus},
	{method: "POST", path: clusterPath + "/transfer", body: true, do: (*API).transfer},
	{method: "GET", path: "/api/v1/retained", query: []string{"filter", "payload", "limit", "after"}, do: (*API).listRetained},
	{method: "DELETE", path: "/api/v1/retained", query: []string{"filter", "limit", "after"}, do: (*API).deleteRetained},
}

// New makes an API.
func New(o Options) *API {
	a := &API{o: o, mux: http.NewServeMux(), places: make(chan struct{}, AtOnce)}
	allowed := make(map[string][]string)
	for _, r := range routes {
		a.mux.HandleFunc(r.method+" "+r.path, func(w http.ResponseWriter, hr *http.Request) { a.serve(w, hr, &r) })
		allowed[r.path] = append(allowed[r.path], r.method)
	}
	for path, methods := range allowed {
		a.mux.HandleFunc(path, func(w http.ResponseWriter, hr *http.Request) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			a.answer(w, hr, "", nil, failed(http.StatusMethodNotAllowed, "%s takes %s", path, strings.Join(methods, " and ")))
		})
	}
	a.mux.HandleFunc("/", func(w http.ResponseWriter, hr *http.Request) {
		a.answer(w, hr, "", nil, failed(http.StatusNotFound, "there is no %s: /api/v1/openapi.json lists what there is", cut(hr.URL.Path)))
	})
	return a
}

// Answers is how many requests were answered with a status whose first digit this is.
func (a *API) Answers(digit int) int64 { return a.answers[digit].Load() }

// byKey is under what the context of a request has its administrator.
type byKey struct{}

// Serve answers a request of an administrator; by is nil if the server does not ask who it is.
func (a *API) Serve(w http.ResponseWriter, r *http.Request, by *access.Identity) {
	a.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), byKey{}, by)))
}

// request is one request, as far as handlers look at it.
type request struct {
	by     *access.Identity // who asks; nil: that is not known
	id     string           // of the path
	query  url.Values       // has only the parameters of the route, each once
	body   []byte
	detail string // what the audit log shall have besides the path; the handler sets it
}

// failure is an error that is answered with a status.
type failure struct {
	status int
	text   string
	code   mqtt.ReasonCode // of a message that was refused; 0: it is about none
}

func (f *failure) Error() string { return f.text }

func failed(status int, format string, args ...any) error {
	return &failure{status: status, text: fmt.Sprintf(format, args...)}
}

// outcome is what the work of a request came to.
type outcome struct {
	answer any
	err    error
	detail string
}

// serve reads a request, has its work done on a goroutine of its own, and answers. The work
// holds the place of the request until it has ended, so that not more than AtOnce are at work
// while the disk hangs.
func (a *API) serve(w http.ResponseWriter, hr *http.Request, r *route) {
	select {
	case a.places <- struct{}{}:
	default:
		w.Header().Set("Retry-After", "1")
		a.answer(w, hr, "", nil, failed(http.StatusTooManyRequests, "%d requests are under way, which is as many as there may be: try again in a second", AtOnce))
		return
	}
	q, held, err := a.read(w, hr, r)
	if err != nil {
		a.end(held)
		a.answer(w, hr, "", nil, err)
		return
	}
	done := make(chan outcome, 1)
	go func() {
		defer failstop.End(a.o.Log, "a request to the HTTP API")
		answer, err := a.do(r, q)
		a.end(held)
		done <- outcome{answer, err, q.detail}
	}()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case o := <-done:
		a.answer(w, hr, o.detail, o.answer, o.err)
	case <-late.C:
		a.answer(w, hr, "", nil, failed(http.StatusServiceUnavailable, "the server has not done this within %v, and may do it later: look at what came of it before you try again", patience))
	}
}

// do does the work of a request as far as the server is the one that other clients use: not if the
// node does not lead its cluster any more, and what it was told to store is lost.
func (a *API) do(r *route, q *request) (answer any, err error) {
	if a.o.Sessions == nil || OfNode(r.path) {
		return r.do(a, q)
	}
	if a.o.AwaitRead != nil && !a.o.AwaitRead() {
		return nil, failed(http.StatusServiceUnavailable, "this node does not lead the cluster any more: nothing was done; ask another node")
	}
	answer, err = r.do(a, q)
	select {
	case <-a.o.Sessions.Journal.Over():
		return nil, failed(http.StatusServiceUnavailable, "the server is ending, and may have done this or not: look at what came of it before you try again")
	default:
		return answer, err
	}
}

// end gives back what a request has: its place, and the memory for its body.
func (a *API) end(held int64) {
	if a.o.Sessions != nil {
		a.o.Sessions.Memory.Credit(memory.Input, held)
	}
	<-a.places
}

// read reads a request, and checks what does not depend on the route. held are bytes of memory
// that are charged for the body.
func (a *API) read(w http.ResponseWriter, hr *http.Request, r *route) (q *request, held int64, err error) {
	q = &request{id: hr.PathValue("id")}
	q.by, _ = hr.Context().Value(byKey{}).(*access.Identity)
	if q.query, err = url.ParseQuery(hr.URL.RawQuery); err != nil {
		return nil, 0, failed(http.StatusBadRequest, "the query of the address is not valid: %v", err)
	}
	for name, values := range q.query {
		switch {
		case !slices.Contains(r.query, name) && len(r.query) == 0:
			return nil, 0, failed(http.StatusBadRequest, "the parameter %q is not known: %s %s takes none", cut(name), r.method, r.path)
		case !slices.Contains(r.query, name):
			return nil, 0, failed(http.StatusBadRequest, "the parameter %q is not known: %s %s takes %s", cut(name), r.method, r.path, strings.Join(r.query, ", "))
		case len(values) > 1:
			return nil, 0, failed(http.StatusBadRequest, "the parameter %s is given %d times: give it once", name, len(values))
		}
	}
	if !r.body {
		return q, 0, nil
	}
	// A page of another web site can send a form or a text to any address without asking, but no
	// JSON: a browser asks first, and is refused.
	if kind, _, err := mime.ParseMediaType(hr.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, 0, failed(http.StatusUnsupportedMediaType, "the Content-Type must be application/json")
	}
	most := a.maxBody()
	tooLarge := failed(http.StatusRequestEntityTooLarge, "the body may have %d bytes, as --max-packet-size allows", most)
	if hr.ContentLength > most {
		return nil, 0, tooLarge
	}
	if held = hr.ContentLength; held < 0 {
		held = most
	}
	if a.o.Sessions != nil && !a.o.Sessions.Memory.Take(memory.Input, held) {
		return nil, 0, failed(http.StatusServiceUnavailable, "the server has no memory for a body of this size at the moment: try again later")
	}
	q.body, err = io.ReadAll(http.MaxBytesReader(w, hr.Body, most))
	var above *http.MaxBytesError
	switch {
	case errors.As(err, &above):
		return nil, held, tooLarge
	case err != nil:
		return nil, held, failed(http.StatusBadRequest, "the body cannot be read: %v", err)
	}
	return q, held, nil
}

// maxBody is how many bytes a body may have: a message of the largest size in base 64.
func (a *API) maxBody() int64 {
	if a.o.Sessions == nil {
		return 64 << 10
	}
	return int64(a.o.Sessions.Limits().MaxPacketSize)/3*4 + 64<<10
}

// Failure is the JSON of an answer that is no success.
type Failure struct {
	Error      string `json:"error"`
	ReasonCode int    `json:"reasonCode,omitempty"` // MQTT's, of a message that was refused
	Reason     string `json:"reason,omitempty"`     // its name
}

// answer writes the answer to a request, and a line of the audit log.
func (a *API) answer(w http.ResponseWriter, r *http.Request, detail string, value any, err error) {
	status := http.StatusOK
	var f *failure
	switch {
	case errors.As(err, &f):
		status = f.status
		text := Failure{Error: f.text}
		if f.code.Failed() {
			text.ReasonCode, text.Reason = int(f.code), f.code.String()
		}
		value = text
	case err != nil:
		status, value = http.StatusInternalServerError, Failure{Error: err.Error()}
	}
	a.answers[status/100].Add(1)
	by, _ := r.Context().Value(byKey{}).(*access.Identity)
	a.o.Audit.Requested(audit.Request{By: by.Name(), Remote: r.RemoteAddr, Method: r.Method, Target: r.URL.RequestURI(), Detail: detail, Status: status})
	if r.Method != http.MethodGet && status < 300 {
		a.o.Log.Info("an administrator has used the HTTP API", "administrator", by.Name(), "remote", r.RemoteAddr, "method", r.Method, "path", cut(r.URL.RequestURI()), "detail", cut(detail))
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if content, is := value.(file); is {
		zipped.Serve(w, r, content)
		return
	}
	body, err := json.Marshal(value)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be written as JSON"}`)
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// cut bounds a text of a request for a message.
func cut(s string) string {
	const most = 100
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// description is openapi.json, compressed.
//
//go:generate go run ../zipped/renew openapi.json openapi.json.gz
//go:embed openapi.json.gz
var description []byte

// file is an answer that is compressed by gzip.
type file []byte

// describe answers with the description of the API.
func (a *API) describe(*request) (any, error) { return file(description), nil }

// limit reads the parameter limit.
func (q *request) limit(most int) (int, error) {
	text := q.query.Get("limit")
	if !q.query.Has("limit") {
		return defaultPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || !units.IsDecimal(text) || n < 1 || n > most {
		return 0, failed(http.StatusBadRequest, "the parameter limit is %q: want a number from 1 to %d", cut(text), most)
	}
	return n, nil
}

// cursor is what the parameter after has for a page to begin behind a place.
func cursor(place string) string { return base64.RawURLEncoding.EncodeToString([]byte(place)) }

// after reads the parameter after: behind which place the page begins; empty: at the start.
func (q *request) after() (place string, err error) {
	b, err := base64.RawURLEncoding.DecodeString(q.query.Get("after"))
	if err != nil {
		return "", failed(http.StatusBadRequest, "the parameter after is not what an answer has as next")
	}
	return string(b), nil
}

// flag reads a parameter that is true or false; given: it is there.
func (q *request) flag(name string) (value, given bool, err error) {
	switch text := q.query.Get(name); {
	case !q.query.Has(name):
		return false, false, nil
	case text == "true" || text == "false":
		return text == "true", true, nil
	default:
		return false, true, failed(http.StatusBadRequest, "the parameter %s is %q: want true or false", name, cut(text))
	}
}
