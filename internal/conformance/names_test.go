package conformance

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

// notStrings are no UTF-8 strings as MQTT has them [MQTT-1.5.4-1], [MQTT-1.5.4-2].
var notStrings = map[string]string{
	"U+0000 alone":             "\x00",
	"U+0000 at the end":        "alice\x00",
	"U+0000 in the middle":     "ali\x00ce",
	"an invalid byte":          "alice\xff",
	"a character that is cut":  "alice\xe2\x82",
	"an overlong U+0000":       "alice\xc0\x80",
	"a surrogate":              "\xed\xa0\x80",
	"beyond U+10FFFF":          "\xf4\x90\x80\x80",
	"65,000 bytes, one U+0000": strings.Repeat("x", 64999) + "\x00",
}

// A CONNECT whose client identifier or user name is no string is refused before anything is
// made of it: no session, no login.
func TestNamesThatAreNoStrings(t *testing.T) {
	t.Parallel()
	k := startKeeper(t)
	alice := k.connect(user("alice"), mqtttest.ClientID("alice"))
	for name, text := range notStrings {
		for field, o := range map[string][]mqtttest.Option{
			"client ID": {user("alice"), mqtttest.ClientID(text)},
			"user name": {mqtttest.Credentials(text, secretOf("alice")), mqtttest.ClientID("c")},
		} {
			t.Run(field+", "+name, func(t *testing.T) {
				t.Parallel()
				c := k.dial()
				c.SendConnect(o...)
				c.ExpectRefused(mqtt.MalformedPacket)
				old := k.dial()
				old.SendConnect(append(o, mqtttest.V311())...)
				old.ExpectClosed() // MQTT 3.1.1 has no code for this [MQTT-3.1.1, 1.5.3-1]
			})
		}
	}
	t.Run("afterwards", func(t *testing.T) { alice.Ping() })
}

// A password is binary data: every byte of it counts, up to what a CONNECT of 64 KiB has
// room for.
func TestPasswordsAreBinary(t *testing.T) {
	t.Parallel()
	k := startKeeper(t)
	for who, test := range map[string]struct{ password, wrong string }{
		"zero":    {"a\x00b", "a"},
		"behind":  {"a", "a\x00"}, // the same to PBKDF2
		"newline": {"a\nb:c\r\n", "a"},
		"invalid": {"\xff\xfe", "\ufffd\ufffd"},
		"control": {"\x1b[2J\x07", "[2J"},
		"longest": {strings.Repeat("p", 65000), strings.Repeat("p", 64999)},
	} {
		k.set(t, who, test.password)
		if err := k.Reload(); err != nil {
			t.Fatal(err)
		}
		bothVersions(t, func(t *testing.T, v mqtt.Version) {
			mqtttest.Refused(t, k.Addr, mqtt.BadUserNameOrPassword, mqtttest.Credentials(who, test.wrong), mqtttest.Version(v))
			k.connect(mqtttest.Credentials(who, test.password), mqtttest.Version(v)).Ping()
		})
	}
}

// oddNames are strings that MQTT allows, and that something which stores, compares or prints
// them may stumble over.
var oddNames = []string{
	"a\nb", "a\r\nb", "\t", "\x01", "\x1b[2J\x1b[H", "\x7f", "a\u0085b", "\u009b2J", "\u2028", "\ufeff", "\uffff",
	" ", "'", `"`, `\`, "a b=c", "%n%s", "../../etc/passwd", "$SYS", "#", "+", "a/+/#", "a|b", "null",
}

// A client identifier with control characters is one like any other: its session is its
// own, and not that of one which only looks the same.
func TestOddClientIDs(t *testing.T) {
	t.Parallel()
	n := start(t)
	for i, id := range append(oddNames, strings.Repeat("x", 1024)) {
		c := n.connect(mqtttest.Persistent(id))
		wantPresent(t, c, false)
		c.Subscribe(fmt.Sprint("odd/", i), 1)
		c.Disconnect()
	}
	n.Restart()
	publisher := n.connect()
	for i, id := range oddNames {
		publisher.Publish(message{Topic: fmt.Sprint("odd/", i), Payload: id, QoS: 1})
		c := n.connect(mqtttest.Persistent(id))
		wantPresent(t, c, true)
		if got := c.Receive(); got.Payload != id {
			t.Errorf("the client %q gets what is for %q", id, got.Payload)
		}
	}
	// At the bound of --max-client-id and above. A CONNECT of more than 64 KiB, as the longest
	// string of MQTT makes it, is not read to its end.
	wantPresent(t, n.connect(mqtttest.Persistent(strings.Repeat("x", 1024))), true)
	bothVersions(t, func(t *testing.T, v mqtt.Version) {
		for _, length := range []int{1025, 65000} {
			mqtttest.Refused(t, n.Addr, mqtt.ClientIdentifierNotValid, mqtttest.ClientID(strings.Repeat("x", length)), mqtttest.Version(v))
		}
		c := mqtttest.Dial(t, n.Addr)
		_ = c.WriteErr(c.EncodeConnect(mqtttest.ClientID(strings.Repeat("x", 65535)), mqtttest.Version(v))) // which the server may cut short
		c.AwaitEnd()
	})
}

// forgeries are names by which a client would have a line of its own in a log, or a field,
// or would write to the terminal of the person who reads it.
var forgeries = append([]string{
	"x\n" + `{"time":"2026-01-01T00:00:00Z","level":"INFO","event":"connected","client":"forged"}` + "\n",
	`x","event":"connected","client":"forged`,
	"x\ntime=2026-01-01T00:00:00Z level=ERROR msg=forged\n",
	`x" level=ERROR msg="forged`,
	"x level=ERROR msg=forged",
	strings.Repeat("x\n", 512),
}, oddNames...)

// No name that a client gives itself makes a line in the log or the audit log, another
// field, a control character, or a line of unbounded length.
func TestNamesDoNotForgeLogLines(t *testing.T) {
	t.Parallel()
	var log logs.Text
	k := startKeeper(t, func(c *server.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.Login.LoginBurst = 1000
	})
	for _, name := range forgeries {
		k.connect(user("alice"), mqtttest.ClientID(name)).Ping()
		k.connect(user("alice"), mqtttest.ClientID(name)).Ping() // a takeover
		mqtttest.Refused(t, k.Addr, mqtt.BadUserNameOrPassword, mqtttest.Credentials(name, "wrong"), mqtttest.ClientID(name))
		mqtttest.Refused(t, k.Addr, mqtt.NotAuthorized, user("bob"), mqtttest.Persistent(name)) // of another owner
		mqtttest.Refused(t, k.Addr, mqtt.BadAuthenticationMethod, by(name, name))
	}
	long := strings.Repeat("\n", 65000)
	mqtttest.Refused(t, k.Addr, mqtt.BadUserNameOrPassword, mqtttest.Credentials(long, "wrong"))
	mqtttest.Refused(t, k.Addr, mqtt.ClientIdentifierNotValid, mqtttest.ClientID(long), user("alice"))
	k.Stop()

	audit, err := os.ReadFile(k.audit)
	if err != nil {
		t.Fatal(err)
	}
	events := map[string]int{}
	for line := range strings.Lines(string(audit)) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("the audit log has a line that is no JSON, %q: %v", line, err)
			continue
		}
		events[fmt.Sprint(fields["event"])]++
		if fields["client"] == "forged" {
			t.Errorf("a forged line: %s", line)
		}
		wantPlainLine(t, "audit log", line)
	}
	if n := len(forgeries); events["connected"] != 2*n || events["took over"] != n || events["refused"] == 0 {
		t.Errorf("the audit log has the events %v; want %d clients that connected", events, 2*n)
	}
	for line := range strings.Lines(log.String()) {
		wantPlainLine(t, "log", line)
		if !strings.HasPrefix(line, "time=") || strings.Contains(line, "level=ERROR") && !strings.Contains(line, `level=ERROR msg`) {
			t.Errorf("a line that is not the server's: %q", line)
		}
		if fields := outsideOfQuotes(line); strings.Count(fields, " level=") != 1 || strings.Count(fields, " msg=") != 1 {
			t.Errorf("a line with forged fields: %s", line)
		}
	}
}

// maxLine bounds a line of a log, in bytes: of each name at most 1,024 come in, and an
// escaped byte takes up to 6.
const maxLine = 16 << 10

// wantPlainLine checks that a line has no control character but its end, and a length.
func wantPlainLine(t *testing.T, what, line string) {
	t.Helper()
	if len(line) > maxLine {
		t.Errorf("the %s has a line of %d bytes", what, len(line))
	}
	for _, r := range strings.TrimSuffix(line, "\n") {
		if r == '\x7f' && what == "log" {
			continue // log/slog leaves it as it is, and terminals do nothing for it
		}
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			t.Errorf("the %s has the control character %U in the line %q", what, r, line)
			return
		}
	}
}

// outsideOfQuotes is a line of text without its quoted values.
func outsideOfQuotes(line string) string {
	var b strings.Builder
	quoted, escaped := false, false
	for _, r := range line {
		switch {
		case escaped:
			escaped = false
		case quoted && r == '\\':
			escaped = true
		case r == '"':
			quoted = !quoted
		case !quoted:
			b.WriteRune(r)
		}
	}
	return b.String()
}
