// Package httpin publishes what comes by HTTP, each request once: a POST with an
// Idempotency-Key that is repeated, because its answer was lost for example, publishes nothing
// and is answered the same again.
//
//	h, err := httpin.New(c, "shop", httpin.Topic("orders"))
//	if err != nil { … }
//	err = h.Server(":8080").ListenAndServe()
//
//	$ curl -d '{"apples":3}' -H 'Content-Type: application/json' -H 'Idempotency-Key: 4711' localhost:8080
//	{"source":"shop","id":"4711","topic":"orders"}
//
// The message and the key of its request are one transaction (protocol, section 12), so the
// message is published once, not once for each attempt: also subscribers that are no processors
// get it once. The server must have TXN.
//
// # Answers
//
//	202  the message is published: a JSON object with its CloudEvents source and id, and its topic
//	400  no Idempotency-Key, an invalid one or several; a topic or body that is not valid
//	404  the function of New has no topic for the request
//	405  the method is not POST
//	413  the body is larger than [WithMaxBody], or than the server's largest packet
//	422  the key belongs to another request: its body, content type or topic was not the same
//	503  the server can't be reached or has no room, or too many requests are under way: send the
//	     same request again, after the seconds of Retry-After
//	500  the server does not allow it; the log says what
//
// Errors are one line of text. After each of them but 422 the same key may be used again.
//
// The handler does not know who sends: put authentication in front of it, and give it
// [WithScope], so that a client can't meet the keys of another one.
package httpin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
	"github.com/holdfast-mqtt/holdfast/internal/quietlog"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// KeyHeader is the header with the key of a request: 1 to 255 visible characters of ASCII, in
// quotes or not.
const KeyHeader = "Idempotency-Key"

// KeyPrefix begins the keys of the store that remember requests; the name given to [New] and a
// slash follow. The client must be allowed to read and write them.
const KeyPrefix = "httpin/"

const (
	maxKeyBytes     = 255
	maxContentType  = 255
	maxHeaderBytes  = 16 << 10 // of a request
	headerTimeout   = 10 * time.Second
	idleTimeout     = 2 * time.Minute
	defaultMaxBody  = 256 << 10
	defaultKeep     = 7 * 24 * time.Hour
	defaultTimeout  = 10 * time.Second
	defaultRequests = 256
	logBurst        = 20 // lines a second
)

// Handler publishes requests. It is safe for concurrent use.
type Handler struct {
	client  *client.Client
	name    string
	topic   func(*http.Request) (string, error)
	o       options
	running chan struct{} // a slot for each request under way
}

type options struct {
	source, eventType string
	scope             func(*http.Request) (string, error)
	validate          func(*http.Request, []byte) error
	maxBody           int64
	keep, timeout     time.Duration
	requests          int
	logger            *slog.Logger
}

// Option configures a [Handler].
type Option func(*options)

// WithSource sets the CloudEvents source of the messages; the default is the handler's name.
func WithSource(source string) Option { return func(o *options) { o.source = source } }

// WithType sets the CloudEvents type of the messages; the default is "http.post".
func WithType(eventType string) Option { return func(o *options) { o.eventType = eventType } }

// WithScope separates the keys of several clients: scope returns whose a request is, for example
// the user that was authenticated. It becomes part of the message's ID: percent-encoded, before a
// slash. Its error is answered with 400 and the error's text.
func WithScope(scope func(*http.Request) (string, error)) Option {
	return func(o *options) { o.scope = scope }
}

// WithValidation has validate look at each body before it is published. Its error is answered
// with 400 and the error's text.
func WithValidation(validate func(r *http.Request, body []byte) error) Option {
	return func(o *options) { o.validate = validate }
}

// WithMaxBody bounds a body, in bytes; the default is 256 KiB.
func WithMaxBody(bytes int64) Option { return func(o *options) { o.maxBody = bytes } }

// WithKeep sets for how long a request is remembered; the default is 7 days. Later, the same
// request is a new one; processors that remember messages for longer still know its message.
func WithKeep(d time.Duration) Option { return func(o *options) { o.keep = d } }

// WithTimeout bounds the time of a request, from its head to the answer; the default is 10 s.
func WithTimeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// WithConcurrency bounds how many requests are under way at once; the default is 256. Others are
// answered with 503. Each holds its body in memory.
func WithConcurrency(requests int) Option { return func(o *options) { o.requests = requests } }

// WithLogger receives a line for each request that fails on the side of the server. The default
// is [slog.Default], with at most 20 lines a second.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// Topic publishes all requests to one topic.
func Topic(name string) func(*http.Request) (string, error) {
	return func(*http.Request) (string, error) { return name, nil }
}

// New makes a handler that publishes requests to the topic that a function gives for each of
// them; its error is answered with 404 and the error's text. Handlers of the same name share
// what they remember: instances behind a load balancer have one name. The error is
// [client.ErrInvalidOption] and says what would be right.
func New(c *client.Client, name string, topic func(*http.Request) (string, error), opts ...Option) (*Handler, error) {
	o := options{source: name, eventType: "http.post", maxBody: defaultMaxBody, keep: defaultKeep, timeout: defaultTimeout, requests: defaultRequests,
		logger: slog.New(quietlog.New(slog.Default().Handler(), quietlog.Options{Burst: logBurst}))}
	for _, opt := range opts {
		opt(&o)
	}
	bad := func(format string, args ...any) (*Handler, error) {
		return nil, fmt.Errorf("httpin: %w: %s", client.ErrInvalidOption, fmt.Sprintf(format, args...))
	}
	switch {
	case name == "" || strings.ContainsAny(name, "/\x00") || !event.ValidText(name):
		return bad("the name is %q: it begins the keys of the store, so it must be UTF-8, not empty, without '/' and NUL", name)
	case topic == nil:
		return bad("the function that gives the topic is nil: see Topic")
	case o.source == "" || !event.ValidText(o.source):
		return bad("WithSource(%q): it must be a text that is not empty", o.source)
	case o.eventType == "" || !event.ValidText(o.eventType):
		return bad("WithType(%q): it must be a text that is not empty", o.eventType)
	case o.maxBody < 1:
		return bad("WithMaxBody(%d): it must be at least 1 byte", o.maxBody)
	case o.keep < time.Second:
		return bad("WithKeep(%v): it must be at least 1 s", o.keep)
	case o.timeout <= 0:
		return bad("WithTimeout(%v): it must be positive", o.timeout)
	case o.requests < 1:
		return bad("WithConcurrency(%d): it must be at least 1", o.requests)
	case o.logger == nil:
		return bad("WithLogger(nil): leave the option out, or give a logger with slog.DiscardHandler")
	case c == nil:
		return bad("the client is nil: see client.Dial")
	}
	return &Handler{client: c, name: name, topic: topic, o: o, running: make(chan struct{}, o.requests)}, nil
}

// Server makes a server that serves the handler alone, with bounds for slow clients and large
// heads (16 KiB).
func (h *Handler) Server(address string) *http.Server {
	return &http.Server{Addr: address, Handler: h, MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		ReadTimeout: headerTimeout + h.o.timeout, WriteTimeout: headerTimeout + 2*h.o.timeout}
}

// failure is an answer that is no success.
type failure struct {
	status int
	text   string
}

func (f *failure) Error() string { return f.text }

func failed(status int, format string, args ...any) error {
	return &failure{status, fmt.Sprintf(format, args...)}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := h.serve(w, r)
	if err != nil {
		f := &failure{http.StatusInternalServerError, "the message could not be published"}
		if !errors.As(err, &f) {
			h.o.logger.Error("a request could not be published", "handler", h.name, "path", r.URL.Path, "error", err)
		}
		switch f.status {
		case http.StatusServiceUnavailable:
			w.Header().Set("Retry-After", "1")
		case http.StatusMethodNotAllowed:
			w.Header().Set("Allow", http.MethodPost)
		}
		http.Error(w, f.text, f.status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(answer) // if it fails, the client sends the request again
}

// serve publishes a request, unless it was published before, and returns the body of the answer.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Method != http.MethodPost {
		return nil, failed(http.StatusMethodNotAllowed, "the method is %s: it must be POST", r.Method)
	}
	select {
	case h.running <- struct{}{}:
		defer func() { <-h.running }()
	default:
		return nil, failed(http.StatusServiceUnavailable, "too many requests are under way: send the same request again later")
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.o.timeout)
	defer cancel()
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(h.o.timeout)) // if it can: a slow client holds a slot
	id, err := h.id(r)
	if err != nil {
		return nil, err
	}
	m, err := h.message(w, r, id)
	if err != nil {
		return nil, err
	}
	if err := h.once(ctx, id, m); err != nil {
		return nil, err
	}
	answer, err := json.Marshal(struct { // in this order, so the same again
		Source string `json:"source"`
		ID     string `json:"id"`
		Topic  string `json:"topic"`
	}{h.o.source, id, m.Topic})
	return append(answer, '\n'), err
}

// id is the message's ID, of the scope and the key of a request.
func (h *Handler) id(r *http.Request) (string, error) {
	keys := r.Header.Values(KeyHeader)
	if len(keys) != 1 {
		return "", failed(http.StatusBadRequest, "the request has %d headers %s: it needs one, which is the same when the request is sent again", len(keys), KeyHeader)
	}
	key := keys[0]
	if len(key) >= 2 && key[0] == '"' && key[len(key)-1] == '"' {
		key = key[1 : len(key)-1]
	}
	if key == "" || len(key) > maxKeyBytes || strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", failed(http.StatusBadRequest, "%s has %d characters: it must have 1 to %d, visible ones of ASCII", KeyHeader, len(key), maxKeyBytes)
	}
	if h.o.scope == nil {
		return key, nil
	}
	scope, err := h.o.scope(r)
	if err != nil {
		return "", failed(http.StatusBadRequest, "%v", err)
	}
	return url.PathEscape(scope) + "/" + key, nil // the first slash ends the scope, as keys may have slashes, too
}

// message reads a request.
func (h *Handler) message(w http.ResponseWriter, r *http.Request, id string) (m consistent.Message, err error) {
	to, err := h.topic(r)
	switch {
	case err != nil:
		return m, failed(http.StatusNotFound, "%v", err)
	case !event.ValidText(to) || !topic.ValidName([]byte(to)):
		return m, failed(http.StatusBadRequest, "the request is for the topic %.100q, which is not the name of a topic", to)
	}
	contentType := r.Header.Get("Content-Type")
	if len(contentType) > maxContentType || !event.ValidText(contentType) {
		return m, failed(http.StatusBadRequest, "the Content-Type has %d bytes: it must be a text of at most %d", len(contentType), maxContentType)
	}
	tooLarge := failed(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", h.o.maxBody)
	if r.ContentLength > h.o.maxBody {
		return m, tooLarge
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.o.maxBody))
	var exceeded *http.MaxBytesError
	switch {
	case errors.As(err, &exceeded):
		return m, tooLarge
	case err != nil:
		return m, failed(http.StatusBadRequest, "the body could not be read: %v", err)
	}
	if h.o.validate != nil {
		if err := h.o.validate(r, body); err != nil {
			return m, failed(http.StatusBadRequest, "the body is not valid: %v", err)
		}
	}
	m, err = consistent.Event(h.o.source, id, h.o.eventType, consistent.Message{Topic: to, Payload: body, ContentType: contentType})
	if err != nil {
		return m, failed(http.StatusBadRequest, "the %s and the scope of its client are too long together: %v", KeyHeader, err)
	}
	for _, name := range event.TraceContext {
		if value := r.Header.Get(name); value != "" && len(value) <= maxContentType && event.ValidText(value) {
			m.UserProperties = append(m.UserProperties, consistent.UserProperty{Name: name, Value: value})
		}
	}
	return m, nil
}

// digest tells requests with the same key apart.
func digest(m *consistent.Message) []byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(m.Topic), []byte(m.ContentType), m.Payload} {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return []byte(hex.EncodeToString(h.Sum(nil)))
}

// once publishes a message in one step with the key that remembers its request. If that is
// there, of an earlier try perhaps whose answer was lost, there is nothing to do.
func (h *Handler) once(ctx context.Context, id string, m consistent.Message) error {
	hash := sha256.Sum256([]byte(id))
	key := txn.Key(KeyPrefix + h.name + "/" + hex.EncodeToString(hash[:]))
	mine := digest(&m)
	out := txn.Message{Topic: m.Topic, Payload: m.Payload, ContentType: m.ContentType}
	for _, u := range m.UserProperties {
		out.UserProperties = append(out.UserProperties, txn.UserProperty(u))
	}
	result, err := h.client.Txn().If(key.Absent()).Then(key.Set(mine).Expire(h.o.keep)).Publish(out).Retry().Commit(ctx)
	switch {
	case errors.Is(err, client.ErrTooLarge):
		return failed(http.StatusRequestEntityTooLarge, "the body is larger than the server takes")
	case errors.Is(err, client.ErrQueueFull), errors.Is(err, client.ErrQuotaExceeded), errors.Is(err, client.ErrNotConnected),
		errors.Is(err, client.ErrUnknownOutcome), errors.Is(err, context.DeadlineExceeded), errors.Is(err, client.ErrClosed):
		h.o.logger.Warn("a request is not published, and its client has to send it again", "handler", h.name, "error", err)
		return failed(http.StatusServiceUnavailable, "the message could not be published now: send the same request again later")
	case err != nil:
		return err
	case result.Outcome == txn.ConditionFailed && string(result.Failed.Value) != string(mine):
		return failed(http.StatusUnprocessableEntity, "the %s was used for another request: its body, content type or topic was not the same; give each request a key of its own", KeyHeader)
	}
	return nil
}
