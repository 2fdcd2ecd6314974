package server

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/admin"
	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// withAdmin has a server serve health and metrics on loopback.
func withAdmin(c *Config) { c.Admin = "127.0.0.1:0" }

// fetch makes a request to the admin listener.
func fetch(t *testing.T, client *http.Client, url string, change ...func(*http.Request)) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(r)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func basic(user, password string) func(*http.Request) {
	return func(r *http.Request) { r.SetBasicAuth(user, password) }
}

// What clients do shows in the metrics, and each metric of the page is there.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := start(t, withAdmin)
	url := "http://" + s.AdminAddr().String()
	c := mqtttest.Connect(t, s.Addrs()[0].String(), mqtttest.ClientID("x"))
	for q := range byte(3) {
		c.Publish(mqtttest.Message{Topic: "t", Payload: "12345", QoS: q})
	}
	c.Subscribe("answers/x", 1)
	for _, command := range [][]string{{"SET", "k", "v"}, {"GET", "k"}, {"GET", "n"}, {"NIX"}} {
		ask(c, "x", command...)
	}
	status, text := 0, ""
	missing := func() (lines []string) {
		for _, line := range []string{
			`holdfast_connections 1`, `holdfast_sessions 1`, `holdfast_sessions_max 200000`, `holdfast_connects_total 1`, `holdfast_subscriptions 1`, `holdfast_automatic_subscriptions_refused_total 0`,
			`holdfast_messages_received_total{qos="0"} 1`, `holdfast_messages_received_total{qos="1"} 5`, `holdfast_messages_received_total{qos="2"} 1`,
			`holdfast_message_bytes_received_total{qos="0"} 5`, `holdfast_message_bytes_received_total{qos="2"} 5`, `holdfast_messages_sent_total{qos="1"} 4`,
			`holdfast_store_keys 1`, `holdfast_store_keys_max 1e+06`,
			`holdfast_store_commands_total{command="SET",outcome="ok"} 1`, `holdfast_store_commands_total{command="GET",outcome="ok"} 1`,
			`holdfast_store_commands_total{command="GET",outcome="missed"} 1`, `holdfast_store_commands_total{command="unknown",outcome="error"} 1`, `holdfast_disk_low 0`,
		} {
			if !strings.Contains(text, "\n"+line+"\n") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	// The reader of a connection adds up what it has counted when it has answered.
	for deadline := time.Now().Add(mqtttest.Deadline); ; time.Sleep(5 * time.Millisecond) {
		if status, text = fetch(t, http.DefaultClient, url+"/metrics"); len(missing()) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("status %d; there are no lines %q in\n%s", status, missing(), text)
		}
	}
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := regexp.MustCompile(`^holdfast_(logins|webhook|bridge|cluster|front|spans)_`) // clients are not asked who they are, there is no bridge and no collector of spans, and the server is neither a node nor a front
	served := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (holdfast_\w+)`).FindAllStringSubmatch(text, -1) {
		served[m[1]] = true
	}
	named := 0
	for _, m := range regexp.MustCompile("(?m)^\\| `(holdfast_\\w+)`").FindAllStringSubmatch(string(page), -1) {
		named++
		if !served[m[1]] && !elsewhere.MatchString(m[1]) {
			t.Errorf("%s is on the page and is not served", m[1])
		}
		delete(served, m[1])
	}
	if named < 50 || len(served) > 0 {
		t.Errorf("the page has %d metrics, and lacks %v", named, served)
	}
}

// The times of commands are samples: a connection that sends many has some.
func TestLatencyIsSampled(t *testing.T) {
	t.Parallel()
	s := start(t, withAdmin)
	c := mqtttest.Connect(t, s.Addrs()[0].String(), mqtttest.ClientID("x"))
	c.Subscribe("answers/x", 1)
	for range 2 * 64 { // every 64th is a SET, of which a sample is taken
		ask(c, "x", "GET", "k")
		ask(c, "x", "SET", "k", "v")
	}
	pattern := regexp.MustCompile(`(?m)^holdfast_store_command_seconds_count\{command="SET"\} 4$`)
	await(t, "the times of four commands", func() bool {
		_, text := fetch(t, http.DefaultClient, "http://"+s.AdminAddr().String()+"/metrics")
		return pattern.MatchString(text)
	})
}

// On loopback each program may read health and metrics; a web page may not, whatever name
// it has given to this machine.
func TestAdminOnLoopback(t *testing.T) {
	t.Parallel()
	s := start(t, withAdmin)
	url := "http://" + s.AdminAddr().String()
	_, port, _ := net.SplitHostPort(s.AdminAddr().String())
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	for name, test := range map[string]struct {
		path   string
		change func(*http.Request)
		status int
		body   string
	}{
		"health":                {"/healthz", host("localhost:" + port), 200, "ok\n"},
		"readiness":             {"/readyz", host("127.0.0.1:" + port), 200, "ready\n"},
		"an IPv6 name":          {"/healthz", host("[::1]:" + port), 200, "ok\n"},
		"no port":               {"/healthz", host("LOCALHOST"), 200, "ok\n"},
		"a profile":             {"/debug/pprof/heap?debug=1", host("localhost"), 200, "heap profile"},
		"a binary profile":      {"/debug/pprof/goroutine", host("localhost"), 200, "\x1f\x8b"},
		"the processor's":       {"/debug/pprof/profile?seconds=0.01", host("localhost"), 200, "\x1f\x8b"},
		"an execution trace":    {"/debug/pprof/trace?seconds=0.01", host("localhost"), 200, "go 1."},
		"no time at all":        {"/debug/pprof/profile?seconds=0", host("localhost"), 400, "want more than 0 seconds"},
		"too long a time":       {"/debug/pprof/trace?seconds=601", host("localhost"), 400, "want more than 0 seconds, and at most 600"},
		"the list of profiles":  {"/debug/pprof/", host("localhost"), 200, "profile?seconds=30"},
		"an unknown profile":    {"/debug/pprof/cmdline", host("localhost"), 404, ""},
		"DNS rebinding":         {"/metrics", host("evil.example.com:" + port), 421, "the Host of the request is not this machine"},
		"a name like localhost": {"/metrics", host("localhost.evil.example.com"), 421, ""},
		"a web page":            {"/metrics", header("Origin", "https://evil.example.com"), 403, "web pages are not served"},
		"the console":           {"/", host("localhost"), 200, "<!doctype html>"},
		"no WebSocket":          {"/mqtt", host("localhost"), 426, ""},
		"an unknown path":       {"/nothing", host("localhost"), 404, ""},
	} {
		if status, body := fetch(t, http.DefaultClient, url+test.path, test.change); status != test.status || !strings.HasPrefix(body, test.body) {
			t.Errorf("%s: %d %.100q, want %d %q", name, status, body, test.status, test.body)
		}
	}
	response, err := http.Post(url+"/metrics", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", response.Status)
	}
	s.setPhase("the data is being read")
	if status, body := fetch(t, http.DefaultClient, url+"/readyz"); status != 503 || body != "not ready: the data is being read\n" {
		t.Errorf("while the data is being read: %d %q", status, body)
	}
}

// Beyond loopback administrators prove who they are; a probe of health needs to prove
// nothing, and learns no reason.
func TestAdminBeyondLoopback(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	dir := t.TempDir()
	users, rules := filepath.Join(dir, "users"), filepath.Join(dir, "policy.yaml")
	for _, user := range []string{"olga", "press"} {
		if err := passwd.Set(users, user, []byte("secret of "+user), passwd.MinIterations); err != nil {
			t.Fatal(err)
		}
	}
	const policy = "rules: [{principals: {usernames: [press]}, brokerResources: [{method: Connect}]}]\ngroups: {operators: {usernames: [olga], quotas: {reserve: true}}}\n"
	if err := os.WriteFile(rules, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, func(c *Config) {
		c.Listen, c.Admin, c.TLS, c.Policy, c.Login.PasswordFile = []string{"mqtts://127.0.0.1:0"}, "0.0.0.0:0", a.Mutual("server"), rules, users
	})
	_, port, _ := net.SplitHostPort(s.AdminAddr().String())
	url := "https://127.0.0.1:" + port
	as := func(config *tls.Config) *http.Client {
		transport := &http.Transport{TLSClientConfig: config}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	stranger, olga, press := as(a.Trust()), as(a.Client("olga")), as(a.Client("press"))
	none := func(*http.Request) {}
	for name, test := range map[string]struct {
		client *http.Client
		path   string
		change func(*http.Request)
		status int
	}{
		"a probe of health":                {stranger, "/healthz", none, 200},
		"a probe of readiness":             {stranger, "/readyz", none, 200},
		"metrics without a proof":          {stranger, "/metrics", none, 401},
		"profiles without a proof":         {stranger, "/debug/pprof/heap", none, 401},
		"an administrator's password":      {stranger, "/metrics", basic("olga", "secret of olga"), 200},
		"a wrong password":                 {stranger, "/metrics", basic("olga", "secret of press"), 401},
		"a client that is no one of them":  {stranger, "/metrics", basic("press", "secret of press"), 403},
		"profiles for such a client":       {stranger, "/debug/pprof/heap", basic("press", "secret of press"), 403},
		"an administrator's certificate":   {olga, "/debug/pprof/heap", none, 200},
		"another client's certificate":     {press, "/metrics", none, 403},
		"what is no token":                 {stranger, "/metrics", header("Authorization", "Bearer x"), 401},
		"a web page with the password":     {stranger, "/metrics", func(r *http.Request) { basic("olga", "secret of olga")(r); header("Origin", "https://x")(r) }, 403},
		"any name, as the certificate has": {stranger, "/healthz", func(r *http.Request) { r.Host = "broker.example.com" }, 200},
	} {
		if status, body := fetch(t, test.client, url+test.path, test.change); status != test.status {
			t.Errorf("%s: %d %.100q, want %d", name, status, body, test.status)
		}
	}
	s.setPhase("the data is being read")
	if status, body := fetch(t, stranger, url+"/readyz"); status != 503 || body != "not ready\n" {
		t.Errorf("while the data is being read: %d %q", status, body)
	}
	if response, err := http.Get("http://127.0.0.1:" + port + "/healthz"); err == nil {
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			t.Error("it answers without TLS")
		}
	}
	if _, err := a.Revoke(a.File("olga.crt")); err != nil {
		t.Fatal(err)
	}
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if response, err := olga.Get(url + "/metrics"); err == nil { // over its old connection; the handshake of a new one fails
		response.Body.Close()
		if response.StatusCode != http.StatusUnauthorized {
			t.Errorf("with a certificate that is revoked: %s", response.Status)
		}
	}
}

// A listener beyond loopback that would serve each client, or without TLS, is refused.
func TestAdminNeedsProtection(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no certificate": {func(c *Config) { c.Admin = "0.0.0.0:0" }, "--admin 0.0.0.0:0 is beyond loopback and needs a certificate"},
		"no host":        {func(c *Config) { c.Admin = ":0" }, "--admin :0 is beyond loopback"},
		"no login":       {func(c *Config) { c.Admin, c.TLS = "0.0.0.0:0", a.Server("server") }, "is for administrators: give --password-file"},
		"no port":        {func(c *Config) { c.Admin = "127.0.0.1" }, `--admin "127.0.0.1": want HOST:PORT`},
		"a password":     {func(c *Config) { c.Admin = "http://user:s3cret@127.0.0.1:1" }, `--admin "http://…@127.0.0.1:1": want HOST:PORT`},
		"a port in use":  {func(c *Config) { c.Admin = occupied(t) }, "or choose another port"},
	} {
		cfg := Default()
		cfg.Listen, cfg.DataDir = []string{"127.0.0.1:0"}, t.TempDir()
		test.change(&cfg)
		if s, err := Start(cfg); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
			if err == nil {
				stop(t, s)
			}
		}
	}
}

// occupied is an address that is listened on.
func occupied(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// Within the bound of connections that have sent no request none ends; beyond it the one that has
// waited longest.
func TestAdminIsBounded(t *testing.T) {
	t.Parallel()
	s := start(t, withAdmin)
	addr := s.AdminAddr().String()
	request := func(nc net.Conn, extra string) (string, error) {
		t.Helper()
		_ = nc.SetDeadline(time.Now().Add(mqtttest.Deadline))
		if _, err := fmt.Fprintf(nc, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n%s\r\n", extra); err != nil {
			return "", err
		}
		return bufio.NewReader(nc).ReadString('\n')
	}
	dial := func() net.Conn {
		t.Helper()
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		return nc
	}
	served := func(what string, nc net.Conn) {
		t.Helper()
		if line, err := request(nc, ""); err != nil || line != "HTTP/1.1 200 OK\r\n" {
			t.Fatalf("%s: %q, %v", what, line, err)
		}
	}
	var silent []net.Conn
	for range admin.MaxWaiting - 1 {
		silent = append(silent, dial())
	}
	served("the last connection within the bound", dial())
	if n := s.admin.TurnedAway(); n != 0 {
		t.Errorf("%d connections were turned away, want none", n)
	}
	silent = append(silent, dial(), dial())
	served("a connection beyond the bound", dial())
	if line, err := request(silent[0], ""); err == nil {
		t.Errorf("the connection that has waited longest was answered: %q", line)
	}
	if n := s.admin.TurnedAway(); n == 0 {
		t.Error("no connection was turned away")
	}
}

func TestAdminBoundsTheHeaderOfARequest(t *testing.T) {
	t.Parallel()
	s := start(t, withAdmin)
	nc, err := net.Dial("tcp", s.AdminAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(mqtttest.Deadline))
	if _, err := fmt.Fprintf(nc, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n", strings.Repeat("x", 64<<10)); err != nil {
		return // it was closed while the header came
	}
	if line, err := bufio.NewReader(nc).ReadString('\n'); err == nil && !strings.Contains(line, "431") {
		t.Errorf("a header of 64 KiB: %q", line)
	}
}

// Connections that never send a whole request keep no probe out.
func TestAdminAnswersBesideSilentConnections(t *testing.T) {
	t.Parallel()
	s := start(t, withAdmin)
	for range 2 * admin.MaxConnections {
		nc, err := net.Dial("tcp", s.AdminAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_, _ = io.WriteString(nc, "GET /healthz HTTP/1.1\r\nHost: local")
	}
	nc, err := net.Dial("tcp", s.AdminAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(mqtttest.Deadline))
	_, _ = io.WriteString(nc, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if line, err := bufio.NewReader(nc).ReadString('\n'); err != nil || line != "HTTP/1.1 200 OK\r\n" {
		t.Errorf("a probe: %q, %v", line, err)
	}
}

// Quota errors are counted by their setting: none at the bound of a TXN's deliveries, or of its
// operations, and one beyond each.
func TestQuotaErrorsAreCounted(t *testing.T) {
	t.Parallel()
	s := start(t, withAdmin, func(c *Config) { c.Limits.MaxTxnDeliveries, c.MaxTxnOperations, c.MaxKeys = 2, 3, 1 })
	url := "http://" + s.AdminAddr().String() + "/metrics"
	c := mqtttest.Connect(t, s.Addrs()[0].String(), mqtttest.ClientID("x"))
	c.Subscribe("answers/x", 1)
	c.Subscribe("out", 1)
	counted := func(want map[string]int) {
		t.Helper()
		for deadline := time.Now().Add(mqtttest.Deadline); ; time.Sleep(5 * time.Millisecond) {
			_, text := fetch(t, http.DefaultClient, url)
			missing := ""
			for setting, n := range want {
				if line := fmt.Sprintf("holdfast_store_quota_errors_total{setting=%q} %d", setting, n); !strings.Contains(text, "\n"+line+"\n") {
					missing = line
				}
			}
			if missing == "" {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("there is no line %s in\n%s", missing, text)
			}
		}
	}
	if got := ask(c, "x", strings.Fields("TXN PUBLISH out 1 PUBLISH out 2 PUBLISH nowhere 3")...); !strings.HasPrefix(got, "*2\r\n:1") {
		t.Errorf("at the bounds: %q", got)
	}
	counted(map[string]int{"max-txn-deliveries": 0, "max-txn-operations": 0, "max-keys": 0})
	for text, want := range map[string]string{
		"TXN PUBLISH out 1 PUBLISH out 2 PUBLISH out 3":                     "-ERR operation 3: the quota has been exceeded\r\n",
		"TXN PUBLISH out 1 PUBLISH out 2 PUBLISH nowhere 3 PUBLISH other 4": "-ERR operation 4: the quota has been exceeded\r\n",
	} {
		if got := ask(c, "x", strings.Fields(text)...); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	counted(map[string]int{"max-txn-deliveries": 1, "max-txn-operations": 1, "max-keys": 0, "max-remembered-bytes": 0})
}
