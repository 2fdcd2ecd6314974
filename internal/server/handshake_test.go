package server

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// A client that the TLS handshake refuses for its certificate has a line in the audit log,
// with its address, the reason, and the certificate's subject, cut to a bounded length; a
// client that is let in has none of that kind.
func TestRefusedHandshakesAreAudited(t *testing.T) {
	t.Parallel()
	a, other := certstest.New(t), certstest.New(t)
	files := a.Mutual("server")
	log := filepath.Join(t.TempDir(), "audit.log")
	s := start(t, func(c *Config) {
		c.Listen, c.TLS, c.AuditLog = []string{"mqtts://127.0.0.1:0"}, files, log
	})
	long := strings.Repeat("n", 10_000)
	for name, r := range map[string]certs.Request{
		"expired": {Name: "expired", Valid: time.Nanosecond},
		"long":    {Name: long, Valid: time.Nanosecond},
	} {
		if err := a.Issue(r, a.File(name)); err != nil {
			t.Fatal(err)
		}
	}
	foreign := other.Client("foreign\nevent")
	foreign.RootCAs = a.Trust().RootCAs
	revoked := a.Client("revoked")
	if _, err := a.Revoke(a.File("revoked.crt")); err != nil {
		t.Fatal(err)
	}
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	addr := s.Addrs()[0].String()
	good, err := tls.Dial("tcp", addr, a.Client("good"))
	if err != nil {
		t.Fatal(err)
	}
	mqtttest.NewClient(t, good).Connect()

	for _, test := range []struct {
		name, subject, reason string
		client                *tls.Config
	}{
		{"none", "", "didn't provide a certificate", a.Trust()},
		{"another authority's", "CN=foreign\nevent", "unknown authority", foreign},
		{"expired", "CN=expired", "expired", a.Show("expired")},
		{"revoked", "CN=revoked", "is revoked", revoked},
		{"a long subject", "CN=" + strings.Repeat("n", 253) + "… (10003 bytes)", "expired", a.Show("long")},
	} {
		// With TLS 1.3 the client learns by its first read that it was refused.
		conn, err := tls.Dial("tcp", addr, test.client)
		remote := ""
		if err == nil {
			remote = conn.LocalAddr().String()
			_ = conn.SetReadDeadline(time.Now().Add(mqtttest.Deadline))
			if _, err = io.ReadAll(conn); err == nil {
				t.Errorf("%s: the client was let in", test.name)
			}
			conn.Close()
		}
		line := awaitEvent(t, log, "handshake refused", func(line map[string]any) bool {
			reason, _ := line["reason"].(string)
			subject, _ := line["subject"].(string)
			return subject == test.subject && strings.Contains(reason, test.reason)
		})
		if from, _ := line["remote"].(string); from != remote && remote != "" || !strings.HasPrefix(from, "127.0.0.1:") {
			t.Errorf("%s: the address is %q, want %q", test.name, from, remote)
		}
		if listener, _ := line["listener"].(string); !strings.HasPrefix(listener, "mqtts://127.0.0.1:") {
			t.Errorf("%s: the listener is %q", test.name, listener)
		}
	}
	if n := len(eventsIn(t, log, "handshake refused")); n != 5 {
		t.Errorf("%d lines of refused handshakes, want 5", n)
	}
}

// eventsIn are the complete lines of an audit log with some event.
func eventsIn(t *testing.T, log, event string) (found []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			continue // it is being written
		}
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if fields["event"] == event {
			found = append(found, fields)
		}
	}
	return found
}

// awaitEvent waits for a line with an event that is the one wanted.
func awaitEvent(t *testing.T, log, event string, is func(map[string]any) bool) map[string]any {
	t.Helper()
	for end := time.Now().Add(2 * mqtttest.Deadline); ; time.Sleep(time.Millisecond) {
		lines := eventsIn(t, log, event)
		for _, line := range lines {
			if is(line) {
				return line
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no such line %q, only %v", event, lines)
		}
	}
}
