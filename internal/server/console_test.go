package server

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/admin"
	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/console"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// The page of the console is a client of the server that has served it.
func TestConsole(t *testing.T) {
	t.Parallel()
	s := start(t, withAdmin)
	addr := s.AdminAddr().String()
	if status, body := fetch(t, http.DefaultClient, "http://"+addr+console.Prefix); status != 200 || !strings.Contains(body, "js/app.js") {
		t.Errorf("the page: %d %.100q", status, body)
	}
	c := mqtttest.DialWebSocket(t, addr)
	c.Connect(mqtttest.ClientID("x"))
	c.Subscribe("answers/x", 1)
	ask(c, "x", "SET", "k", "v")
	if reply := ask(c, "x", "GET", "k"); reply != "$1\r\nv\r\n" {
		t.Errorf("GET: %q", reply)
	}
}

// Where clients are asked who they are, the page is; the policy says what it may do.
func TestConsoleSignsIn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	users, rules := filepath.Join(dir, "users"), filepath.Join(dir, "policy.yaml")
	if err := passwd.Set(users, "press", []byte("secret of press"), passwd.MinIterations); err != nil {
		t.Fatal(err)
	}
	const policy = `
rules:
  - principals: {usernames: [press]}
    brokerResources: [{method: Connect}, {method: Publish, topics: ["statestore/#", "answers/#"]}, {method: Subscribe, topics: ["answers/#"]}]
    stateStoreResources: [{method: ReadWrite, keyType: Pattern, keys: ["press/*"]}]
`
	if err := os.WriteFile(rules, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, withAdmin, func(c *Config) { c.Policy, c.Login.PasswordFile = rules, users })
	addr := s.AdminAddr().String()
	for name, option := range map[string]mqtttest.Option{
		"no credentials":   mqtttest.ClientID("x"),
		"a wrong password": mqtttest.Credentials("press", "secret"),
	} {
		c := mqtttest.DialWebSocket(t, addr)
		c.SendConnect(option)
		if ack := c.Expect(mqtt.CONNACK).Connack; ack.Code != mqtt.BadUserNameOrPassword && ack.Code != mqtt.NotAuthorized {
			t.Errorf("%s: %v", name, ack.Code)
		}
	}
	c := mqtttest.DialWebSocket(t, addr)
	c.Connect(mqtttest.ClientID("x"), mqtttest.Credentials("press", "secret of press"))
	c.Subscribe("answers/x", 1)
	for key, want := range map[string]string{"press/1": "+OK\r\n", "secret": "-ERR not authorized\r\n"} {
		if reply := ask(c, "x", "SET", key, "v"); reply != want {
			t.Errorf("SET %s: %q, want %q", key, reply, want)
		}
	}
}

// A page without credentials may connect where another client on this machine may without, and
// not because clients elsewhere may.
func TestConsoleWithoutCredentials(t *testing.T) {
	t.Parallel()
	users := filepath.Join(t.TempDir(), "users")
	if err := passwd.Set(users, "press", []byte("secret of press"), passwd.MinIterations); err != nil {
		t.Fatal(err)
	}
	for host, may := range map[string]bool{"127.0.0.1:0": true, "0.0.0.0:0": false} {
		url, err := listen.ParseURL("mqtt://" + host)
		if err != nil {
			t.Fatal(err)
		}
		s := start(t, withAdmin, func(c *Config) {
			c.Login.PasswordFile, c.Listeners = users, []listen.Config{{URL: url, Anonymous: true}}
		})
		c := mqtttest.DialWebSocket(t, s.AdminAddr().String())
		c.SendConnect(mqtttest.ClientID("x"))
		if ack := c.Expect(mqtt.CONNACK).Connack; (ack.Code == mqtt.Success) != may {
			t.Errorf("anonymous clients may connect to %s, and the console got %v", host, ack.Code)
		}
	}
}

// Consoles leave room for health checks.
func TestHealthBesideConsoles(t *testing.T) {
	t.Parallel()
	if console.MaxConnections >= admin.MaxConnections {
		t.Fatalf("%d of %d connections may be consoles", console.MaxConnections, admin.MaxConnections)
	}
	s := start(t, withAdmin)
	addr := s.AdminAddr().String()
	for i := range console.MaxConnections {
		mqtttest.DialWebSocket(t, addr).Connect(mqtttest.ClientID(fmt.Sprint("page", i)))
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	upgrade := func(r *http.Request) {
		for name, value := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "mqtt"} {
			r.Header.Set(name, value)
		}
	}
	if status, body := fetch(t, client, "http://"+addr+"/mqtt", upgrade); status != 503 || !strings.HasPrefix(body, "as many consoles are connected as may be") {
		t.Errorf("one console more: %d %q", status, body)
	}
	if status, body := fetch(t, client, "http://"+addr+"/readyz"); status != 200 || body != "ready\n" {
		t.Errorf("beside them: %d %q", status, body)
	}
}

// While the server reads its data, the page cannot connect and is told why.
func TestConsoleDuringStart(t *testing.T) {
	t.Parallel()
	s := &Server{}
	s.setPhase("the data is being read")
	w := httptest.NewRecorder()
	s.console.Handler(s.unready).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/mqtt", nil))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "the data is being read") {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}
