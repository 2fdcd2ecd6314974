package server

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/webhook"
)

// withWebhook starts a server that asks a webhook, which answers as answer says for each user
// name; what answer does not say is a 500. It gives the number of requests.
func withWebhook(t *testing.T, answer map[string]string, change ...func(*Config)) (s *Server, requests *atomic.Int64) {
	t.Helper()
	requests = new(atomic.Int64)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		var q webhook.Question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Protocol != "5" || q.Remote == "" || q.Listener == "" {
			t.Errorf("%+v: %v", q, err)
		}
		text, known := answer[q.Username]
		if !known {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(hook.Close)
	set := func(c *Config) {
		c.Limits.ConnectTimeout = 2 * time.Minute // so that the answer has a minute on a busy machine
		c.Login.Webhook = webhook.Options{URL: hook.URL, Timeout: time.Minute, Remember: time.Hour, Denied: time.Hour}
	}
	return start(t, append([]func(*Config){set}, change...)...), requests
}

// The webhook says who may connect, and the rules in its answer what a client may do: topics,
// and keys of the state store. Nothing of that asks it again.
func TestWebhook(t *testing.T) {
	t.Parallel()
	s, requests := withWebhook(t, map[string]string{
		"alice": `{"result":"allow","rules":{"publish":["from/{principal.username}/#"],"subscribe":["to/+"],"read":["alice:*"]}}`,
		"bob":   `{"result":"allow"}`,
		"eve":   `{"result":"deny"}`,
		"ann":   `{"result":"ignore"}`,
	})
	addr := s.Addrs()[0].String()
	mqtttest.Refused(t, addr, mqtt.BadUserNameOrPassword, mqtttest.ClientID("e"), mqtttest.Credentials("eve", "x"))
	mqtttest.Refused(t, addr, mqtt.NotAuthorized, mqtttest.ClientID("n"), mqtttest.Credentials("ann", "x"))
	mqtttest.Refused(t, addr, mqtt.ServerUnavailable, mqtttest.ClientID("u"), mqtttest.Credentials("unknown", "x"))

	alice := mqtttest.Connect(t, addr, mqtttest.ClientID("a"), mqtttest.Credentials("alice", "x"))
	for topic, want := range map[string]mqtt.ReasonCode{"from/alice/1": mqtt.NoMatchingSubscribers, "from/bob/1": mqtt.NotAuthorized, "to/1": mqtt.NotAuthorized} {
		if got := alice.Offer(mqtttest.Message{Topic: topic, QoS: 1}); got.Code != want {
			t.Errorf("a publish to %s: %v, want %v", topic, got.Code, want)
		}
	}
	for filter, want := range map[string]mqtt.ReasonCode{"to/+": 1, "to/#": mqtt.NotAuthorized, "$share/g/to/1": 1, "from/alice/1": mqtt.NotAuthorized} {
		if got := alice.OfferSubscribe(0, mqtttest.Sub{Filter: filter, QoS: 1}).Codes[0]; got != want {
			t.Errorf("a subscription to %s: %v, want %v", filter, got, want)
		}
	}
	asked := requests.Load()
	mqtttest.Connect(t, addr, mqtttest.ClientID("a"), mqtttest.Credentials("alice", "x"))
	if n := requests.Load(); n != asked {
		t.Errorf("a client that connects again took %d requests: the answer was not remembered", n-asked)
	}
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	mqtttest.Connect(t, addr, mqtttest.ClientID("a"), mqtttest.Credentials("alice", "x"))
	if n := requests.Load(); n != asked+1 {
		t.Errorf("after a reload %d requests, want 1", n-asked)
	}

	bob := mqtttest.Connect(t, addr, mqtttest.ClientID("b"), mqtttest.Credentials("bob", "x"))
	if got := bob.OfferSubscribe(0, mqtttest.Sub{Filter: "#"}).Codes[0]; got.Failed() {
		t.Errorf("a client without rules: %v", got)
	}
	mqtttest.Refused(t, addr, mqtt.NotAuthorized, mqtttest.ClientID("a"), mqtttest.Credentials("bob", "x")) // alice's session
}

// Beside a policy its rules and those of the answer add up; the answer's attributes are those
// of the client.
func TestWebhookBesideAPolicy(t *testing.T) {
	t.Parallel()
	rules := filepath.Join(t.TempDir(), "policy.yaml")
	const text = `
- principals:
    attributes: [{role: press}]
  brokerResources:
    - method: Connect
    - method: Publish
      topics: [news/#]
`
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, _ := withWebhook(t, map[string]string{
		"alice": `{"result":"allow","attributes":{"role":"press"},"rules":{"publish":["mine"]}}`,
		"bob":   `{"result":"allow","attributes":{"role":"reader"}}`,
	}, func(c *Config) { c.Policy = rules })
	addr := s.Addrs()[0].String()
	alice := mqtttest.Connect(t, addr, mqtttest.ClientID("a"), mqtttest.Credentials("alice", "x"))
	for topic, want := range map[string]mqtt.ReasonCode{"news/1": mqtt.NoMatchingSubscribers, "mine": mqtt.NoMatchingSubscribers, "other": mqtt.NotAuthorized} {
		if got := alice.Offer(mqtttest.Message{Topic: topic, QoS: 1}); got.Code != want {
			t.Errorf("a publish to %s: %v, want %v", topic, got.Code, want)
		}
	}
	mqtttest.Refused(t, addr, mqtt.NotAuthorized, mqtttest.ClientID("b"), mqtttest.Credentials("bob", "x"))
}

// While the webhook does not answer, users of the password file get in all the same; with the
// failure policy ignore so do those who prove who they are in another way.
func TestWebhookFails(t *testing.T) {
	t.Parallel()
	users := filepath.Join(t.TempDir(), "users")
	if err := passwd.Set(users, "olga", []byte("secret"), passwd.MinIterations); err != nil {
		t.Fatal(err)
	}
	s, requests := withWebhook(t, nil, func(c *Config) { c.Login.PasswordFile = users })
	addr := s.Addrs()[0].String()
	mqtttest.Connect(t, addr, mqtttest.ClientID("o"), mqtttest.Credentials("olga", "secret"))
	mqtttest.Refused(t, addr, mqtt.BadUserNameOrPassword, mqtttest.ClientID("o"), mqtttest.Credentials("olga", "wrong"))
	if n := requests.Load(); n != 0 {
		t.Errorf("the webhook was asked %d times about a user of the password file", n)
	}
	mqtttest.Refused(t, addr, mqtt.ServerUnavailable, mqtttest.ClientID("a"), mqtttest.Credentials("alice", "x"))
	mqtttest.Refused(t, addr, mqtt.ServerUnavailable, mqtttest.ClientID("a"))

	s, _ = withWebhook(t, nil, func(c *Config) {
		c.Login.PasswordFile, c.Login.Webhook.Failure, c.AllowAnonymous = users, webhook.Ignore, true
	})
	addr = s.Addrs()[0].String()
	mqtttest.Refused(t, addr, mqtt.BadUserNameOrPassword, mqtttest.ClientID("a"), mqtttest.Credentials("alice", "x"))
	mqtttest.Connect(t, addr, mqtttest.ClientID("a"))
}

// A client is disconnected when the time of the answer has come. To the login it is two hours earlier than to the
// sweep of the connections, and the answer is for one hour, so nothing waits for the time.
func TestWebhookExpires(t *testing.T) {
	t.Parallel()
	now := time.Now()
	text, _ := json.Marshal(webhook.Answer{Result: webhook.Allowed, Expires: now.Add(-time.Hour).Unix()})
	early := func(c *Config) { c.Login.Now = func() time.Time { return now.Add(-2 * time.Hour) } }
	s, _ := withWebhook(t, map[string]string{"alice": string(text)}, early)
	c := mqtttest.Connect(t, s.Addrs()[0].String(), mqtttest.ClientID("a"), mqtttest.Credentials("alice", "x"))
	c.AwaitDisconnect(mqtt.MaximumConnectTime)
}

// The metrics say what became of the questions.
func TestWebhookMetrics(t *testing.T) {
	t.Parallel()
	s, _ := withWebhook(t, map[string]string{"alice": `{"result":"allow"}`}, withAdmin)
	addr := s.Addrs()[0].String()
	for range 2 {
		mqtttest.Connect(t, addr, mqtttest.ClientID("a"), mqtttest.Credentials("alice", "x"))
	}
	mqtttest.Refused(t, addr, mqtt.ServerUnavailable, mqtttest.ClientID("u"), mqtttest.Credentials("unknown", "x"))
	_, text := fetch(t, http.DefaultClient, "http://"+s.AdminAddr().String()+"/metrics")
	for _, want := range []string{
		`holdfast_webhook_questions_total{outcome="allow"} 1`, `holdfast_webhook_questions_total{outcome="remembered"} 1`, `holdfast_webhook_questions_total{outcome="failed"} 1`,
		"holdfast_webhook_failing 1", "holdfast_webhook_remembered 1", "holdfast_webhook_remembered_bytes_max 1.6777216e+07", "holdfast_webhook_seconds_count 2",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
