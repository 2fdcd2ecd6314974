package conformance

import (
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// What a request names is bounded: at its bound it is served, above, up to what a
// packet can carry, refused with the protocol's own error. Afterwards the key that it
// named still answers on another connection.
func TestStoreBoundsOfNames(t *testing.T) {
	t.Parallel()
	n := start(t)
	r, other := n.requester(), n.requester()
	syntax, malformed := failure("syntax error"), failure("malformed timestamp")
	const inProperty, inPayload = 65_535, 4 << 20 // what a user property and a packet can carry
	stamp := func(node int) string { return "1:0:" + strings.Repeat("n", node) }

	served := func(name, property, value string, args ...string) {
		t.Helper()
		if got := askWith(r, property, value, args...); strings.HasPrefix(got, "-ERR") {
			t.Errorf("%s at its bound: got %q", name, got)
		}
	}
	refused := func(name, want, property, value string, args ...string) {
		t.Helper()
		if got := askWith(r, property, value, args...); got != want {
			t.Errorf("%s above its bound: got %.100q, want %q", name, got, want)
		}
	}

	for i, args := range [][]string{
		{"SET", "k", "v"}, {"SET", "k", "holder", "NX", "PX", "3600000"}, {"SET", "k", "holder", "NEX", "PX", "3600000"},
		{"DEL", "k"}, {"VDEL", "k", "v"}, {"STORE", "k", "v", "m", "-"},
	} {
		key := "token " + strconv.Itoa(i)
		args[1] = key
		served("node ID of a token", "__ft", stamp(256), args...)
		for _, size := range []int{257, 17_000, inProperty - len(stamp(0))} {
			refused("node ID of a token", malformed, "__ft", stamp(size), args...)
		}
		other.do("GET", key) // is answered
	}
	served("node ID of a timestamp", "__ts", stamp(256), "SET", "time", "v")
	served("node ID of a version", "", "", "SET", "time", "v", "VER", stamp(256))
	for _, size := range []int{257, 17_000, inProperty - len(stamp(0))} {
		refused("node ID of a timestamp", malformed, "__ts", stamp(size), "SET", "time", "v")
		refused("node ID of a timestamp", malformed, "__ts", stamp(size), "STORE", "time", "v", "m", "-")
		refused("node ID of a version", malformed, "", "", "SET", "time", "v", "VER", stamp(size))
		refused("node ID of a version", malformed, "", "", "STORE", "time", "v", "m", stamp(size))
	}
	other.want(blob("v"), "GET", "time")

	for _, verb := range [][]string{{"SET", "", "v"}, {"GET", ""}, {"DEL", ""}, {"VDEL", "", "v"}, {"LOAD", "", "m"}, {"STORE", "", "v", "m", "-"}, {"DONE", "", "m"}} {
		verb[1] = strings.Repeat("k", 64<<10)
		served("key of "+verb[0], "", "", verb...)
		for _, size := range []int{64<<10 + 1, inPayload - 1000} {
			verb[1] = strings.Repeat("k", size)
			refused("key of "+verb[0], syntax, "", "", verb...)
		}
	}
	for _, verb := range [][]string{{"LOAD", "k", ""}, {"STORE", "k", "v", "", "-"}, {"DONE", "k", ""}} {
		at := 2 + len(verb)/5
		verb[at] = strings.Repeat("m", 1<<10)
		served("message ID of "+verb[0], "", "", verb...)
		for _, size := range []int{1<<10 + 1, 17_000, 65_535, inPayload - 1000} {
			verb[at] = strings.Repeat("m", size)
			refused("message ID of "+verb[0], syntax, "", "", verb...)
		}
	}
	served("pattern", "", "", "SCAN", strings.Repeat("p", 1<<10))
	for _, size := range []int{1<<10 + 1, 17_000, 65_535, inPayload - 1000} {
		refused("pattern", syntax, "", "", "SCAN", strings.Repeat("p", size))
	}
	other.want(blob("v"), "GET", strings.Repeat("k", 64<<10)) // which STORE has set
}

// A key that is watched must fit into the topic of its notifications, in hexadecimal
// digits and with the client's.
func TestStoreBoundOfAWatchedKey(t *testing.T) {
	t.Parallel()
	r := start(t).requester(mqtttest.ClientID("watcher"))
	room := (65_535 - len(notifyTopic("watcher", ""))) / 2
	r.want(ok, "KEYNOTIFY", strings.Repeat("k", room))
	for _, size := range []int{room + 1, 64 << 10, 64<<10 + 1, 4 << 20} {
		r.want(failure("syntax error"), "KEYNOTIFY", strings.Repeat("k", size))
	}
}

func TestStoreKeySizeIsASetting(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *server.Config) { c.MaxKeySize = 8 }).requester()
	r.want(ok, "SET", "12345678", "v")
	r.want(failure("syntax error"), "SET", "123456789", "v")
	r.want(failure("syntax error"), "GET", "123456789")
}

// askWith sends a command with a user property of this value, in place of the usual
// one where it has the same name, and returns the answer's payload.
func askWith(r *requester, property, value string, args ...string) string {
	r.t.Helper()
	m := r.request(command(args...))
	switch property {
	case "":
	case "__ts":
		m.User = [][2]string{{property, value}}
	default:
		m.User = append(m.User, [2]string{property, value})
	}
	return r.ask(m).Payload
}

// A quota error says which quota it is: in a user property of ours, and in a line of
// the log, as does everything else that is refused.
func TestStoreSaysWhyItRefuses(t *testing.T) {
	t.Parallel()
	var log lockedLog
	n := start(t, func(c *server.Config) {
		c.MaxKeys, c.MaxWatches, c.Limits.MaxTopicLevels = 1, 1, 8
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	r := n.requester(mqtttest.ClientID("asker"))
	quotaOf := func(m message) string {
		name, _ := m.UserProp("holdfast-quota")
		return name
	}
	if got := r.want(ok, "SET", "a", "v"); quotaOf(got) != "" {
		t.Errorf("an answer that is no quota error has the property %q", quotaOf(got))
	}
	exceeded := failure("the quota has been exceeded")
	if got := r.want(exceeded, "SET", "b", "v"); quotaOf(got) != "max-keys" {
		t.Errorf("got the quota %q, want max-keys", quotaOf(got))
	}
	r.want(ok, "KEYNOTIFY", "a")
	if got := r.want(exceeded, "KEYNOTIFY", "b"); quotaOf(got) != "max-watches" {
		t.Errorf("got the quota %q, want max-watches", quotaOf(got))
	}

	refused := func(code mqtt.ReasonCode, change func(*message)) {
		t.Helper()
		m := r.request(command("GET", "a"))
		change(&m)
		ack := r.Offer(m)
		wantCode(t, "PUBACK", ack.Code, code)
		r.Quiet()
	}
	refused(mqtt.ImplementationSpecificError, func(m *message) { m.CorrelationData = nil })
	refused(mqtt.TopicNameInvalid, func(m *message) { m.ResponseTopic = new(strings.Repeat("l/", 8) + "l") })
	refused(mqtt.PayloadFormatInvalid, func(m *message) { m.PayloadFormat, m.Payload = new(byte(1)), command("GET", "\xFF") })
	refused(mqtt.Success, func(m *message) { m.Expiry = new(uint32(0)) })
	for _, line := range []string{
		"quota=max-keys", "quota=max-watches", "no Correlation Data", "too many levels", "not UTF-8", "has expired",
	} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("no line of the log says %q", line)
		}
	}
	if n := strings.Count(log.String(), "client=asker"); n < 6 {
		t.Errorf("%d lines of the log name the client, want 6:\n%s", n, log.String())
	}
}

// At these bounds a request is served.
func TestStoreServesRequestsAtTheirBounds(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Limits.MaxTopicLevels = 8 })
	r := n.requester()
	r.want(ok, "SET", "é", "v")
	m := r.request(command("GET", "é"))
	m.PayloadFormat = new(byte(1))
	if got := r.ask(m).Payload; got != blob("v") {
		t.Errorf("a payload that is UTF-8 as it says: got %q", got)
	}
	m = r.request(command("GET", "\xFF"))
	m.PayloadFormat = new(byte(0))
	if got := r.ask(m).Payload; got != missing {
		t.Errorf("a payload that says nothing: got %q", got)
	}
	deep := strings.Repeat("l/", 7) + "l"
	r.Subscribe(deep, 1)
	m = r.request(command("GET", "é"))
	m.ResponseTopic = &deep
	if got := r.ask(m).Payload; got != blob("v") {
		t.Errorf("a Response Topic of 8 levels: got %q", got)
	}
}

// lockedLog is a log that is read while it is written.
type lockedLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
