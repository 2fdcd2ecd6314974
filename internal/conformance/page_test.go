package conformance

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// docs/protocol.md promises that its examples are run. This test reads them out of
// the page and plays each block against a server of its own, whose wall clock stands
// still, so that versions are those of the page.
const pagePath = "../../docs/protocol.md"

// pageWallMs is the wall clock of the examples.
const pageWallMs = 1_700_000_000_000

type stillClock struct{ started time.Time }

func (stillClock) WallMs() int64               { return pageWallMs }
func (c stillClock) SinceStart() time.Duration { return time.Since(c.started) }

// block is one fenced block of the page with examples.
type block struct {
	line  int // of its first line in the page
	kind  string
	words []string // that follow the kind
	lines []string
}

// pageBlocks returns the fenced blocks of these kinds.
func pageBlocks(t *testing.T, kinds ...string) (blocks []block) {
	t.Helper()
	text, err := os.ReadFile(pagePath)
	if err != nil {
		t.Fatal(err)
	}
	var current *block
	for i, line := range strings.Split(string(text), "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && current != nil:
			for _, kind := range kinds {
				if current.kind == kind {
					blocks = append(blocks, *current)
				}
			}
			current = nil
		case fence:
			kind, rest, _ := strings.Cut(info, " ")
			current = &block{line: i + 2, kind: kind, words: strings.Fields(rest)}
		case current != nil:
			current.lines = append(current.lines, line)
		}
	}
	return blocks
}

func (b *block) has(word string) bool {
	for _, w := range b.words {
		if w == word {
			return true
		}
	}
	return false
}

func startForPage(t *testing.T, b block) *node {
	return start(t, func(c *server.Config) {
		c.Clock = stillClock{time.Now()}
		if b.has("documented") {
			c.Wire = "documented"
		}
	})
}

func TestExchangesOfTheProtocolPage(t *testing.T) {
	t.Parallel()
	blocks := pageBlocks(t, "exchange")
	if len(blocks) < 8 {
		t.Fatalf("found %d exchanges in %s, want more: is the page still written that way?", len(blocks), pagePath)
	}
	for _, b := range blocks {
		t.Run(fmt.Sprintf("line %d", b.line), func(t *testing.T) {
			t.Parallel()
			r := startForPage(t, b).requester(mqtttest.ClientID("demo"))
			if b.has("preview") {
				r.preview()
			}
			for i, line := range b.lines {
				playLine(t, r, line, fmt.Sprintf("%s:%d", pagePath, b.line+i))
			}
			r.Quiet()
		})
	}
}

var braces = regexp.MustCompile(`\{(\S+)(?: (\S*))?\}`)

// playLine plays one line of an exchange.
func playLine(t *testing.T, r *requester, line, at string) {
	t.Helper()
	var user [][2]string
	for _, m := range braces.FindAllStringSubmatch(line, -1) {
		user = append(user, [2]string{m[1], m[2]})
	}
	line = strings.TrimSpace(braces.ReplaceAllString(line, ""))
	mark, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch mark {
	case "→":
		m := r.request(command(words(t, at, rest)...))
		m.User = [][2]string{{r.timestamp, fmt.Sprintf("%d:0:demo", int64(pageWallMs))}}
		for _, p := range user {
			if strings.HasPrefix(p[0], "__ts") || p[0] == "Timestamp" {
				m.User = nil
			}
		}
		for _, p := range user {
			if p[1] != "" {
				m.User = append(m.User, p)
			}
		}
		r.SendPublish(m)
	case "←":
		got := nextMessage(t, r, at)
		if got.CorrelationData == nil {
			t.Fatalf("%s: got %v, want a response", at, got)
		}
		wantOfPage(t, at, got, unescape(t, at, rest), r.timestamp, user)
	case "⇐":
		key, payload, _ := strings.Cut(rest, " ")
		got := nextMessage(t, r, at)
		if want := notifyTopic("demo", key); got.Topic != want {
			t.Fatalf("%s: got topic %s, want %s", at, got.Topic, want)
		}
		wantOfPage(t, at, got, unescape(t, at, strings.TrimSpace(payload)), r.timestamp, user)
	default:
		t.Fatalf("%s: the line begins with none of → ← ⇐", at)
	}
}

// nextMessage returns the next message; PUBACKs before it must say success.
func nextMessage(t *testing.T, r *requester, at string) message {
	t.Helper()
	for {
		switch p := r.Next(); p.Type {
		case mqtt.PUBACK:
			wantCode(t, at, p.Ack.Code, mqtt.Success)
		case mqtt.PUBLISH:
			return *p.Publish
		default:
			t.Fatalf("%s: got %v", at, p)
		}
	}
}

// wantOfPage checks a payload, and that the message carries the version that the page
// says, or none.
func wantOfPage(t *testing.T, at string, got message, payload, timestamp string, user [][2]string) {
	t.Helper()
	if got.Payload != payload {
		t.Errorf("%s: got %q, want %q", at, got.Payload, payload)
	}
	version, _ := got.UserProp(timestamp)
	want := ""
	for _, p := range user {
		if p[0] == timestamp {
			want = p[1]
			continue
		}
		if value, _ := got.UserProp(p[0]); value != p[1] {
			t.Errorf("%s: got %s %q, want %q", at, p[0], value, p[1])
		}
	}
	if version != want {
		t.Errorf("%s: got version %q, want %q", at, version, want)
	}
}

// words splits a request as the page writes it.
func words(t *testing.T, at, text string) (out []string) {
	t.Helper()
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		if text[0] != '"' {
			word, rest, _ := strings.Cut(text, " ")
			out, text = append(out, word), rest
			continue
		}
		quoted, err := strconv.QuotedPrefix(text)
		if err != nil {
			t.Fatalf("%s: %v: %s", at, err, text)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("%s: %v: %s", at, err, quoted)
		}
		out, text = append(out, word), text[len(quoted):]
	}
	return out
}

func unescape(t *testing.T, at, text string) string {
	t.Helper()
	s, err := strconv.Unquote(`"` + text + `"`)
	if err != nil {
		t.Fatalf("%s: %v: %s", at, err, text)
	}
	return s
}

// TestBytesOfTheProtocolPage plays whole packets over a raw socket.
func TestBytesOfTheProtocolPage(t *testing.T) {
	t.Parallel()
	blocks := pageBlocks(t, "bytes")
	if len(blocks) < 3 {
		t.Fatalf("found %d blocks of bytes in %s, want more: is the page still written that way?", len(blocks), pagePath)
	}
	for _, b := range blocks {
		t.Run(fmt.Sprintf("line %d", b.line), func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", startForPage(t, b).Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(mqtttest.Deadline)); err != nil {
				t.Fatal(err)
			}
			for _, p := range packetsOf(t, b) {
				if p.sent {
					if _, err := conn.Write(p.bytes); err != nil {
						t.Fatalf("%s: %v", p.at, err)
					}
					continue
				}
				got := readPacket(t, conn, p.at)
				if !bytes.Equal(got, p.bytes) {
					t.Fatalf("%s: got\n%s\nwant\n%s", p.at, dump(got), dump(p.bytes))
				}
			}
			// A block ends with the end of the connection, or the server has sent no more.
			if _, err := conn.Write([]byte{0xC0, 0}); err == nil {
				rest, err := io.ReadAll(io.LimitReader(conn, 2))
				if len(rest) > 0 && !bytes.Equal(rest, []byte{0xD0, 0}) {
					t.Errorf("%s:%d: the server sent more: % x", pagePath, b.line, rest)
				}
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error(err)
				}
			}
		})
	}
}

// examplePacket is a packet as the page shows it.
type examplePacket struct {
	at    string
	sent  bool
	bytes []byte
}

func packetsOf(t *testing.T, b block) (packets []examplePacket) {
	t.Helper()
	for i, line := range b.lines {
		at := fmt.Sprintf("%s:%d", pagePath, b.line+i)
		if strings.HasPrefix(line, "#") {
			continue
		}
		switch line[0] {
		case '>', '<':
			packets = append(packets, examplePacket{at: at, sent: line[0] == '>'})
		case ' ':
		default:
			t.Fatalf("%s: the line begins with none of > < # and a space", at)
		}
		p := &packets[len(packets)-1]
		p.bytes = append(p.bytes, field(t, at, line[1:])...)
	}
	return packets
}

// field reads hexadecimal bytes and quoted text.
func field(t *testing.T, at, text string) (out []byte) {
	t.Helper()
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		if text[0] == '"' {
			w := words(t, at, text[:strings.Index(text[1:], `"`)+2])
			out = append(out, w[0]...)
			text = text[strings.Index(text[1:], `"`)+2:]
			continue
		}
		digits, rest, _ := strings.Cut(text, " ")
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		out, text = append(out, b...), rest
	}
	return out
}

func readPacket(t *testing.T, conn net.Conn, at string) []byte {
	t.Helper()
	var packet []byte
	one := make([]byte, 1)
	length, shift := 0, 0
	for i := 0; i == 0 || i == 1 || packet[len(packet)-1]&0x80 != 0; i++ {
		if _, err := io.ReadFull(conn, one); err != nil {
			t.Fatalf("%s: %v after % x", at, err, packet)
		}
		packet = append(packet, one[0])
		if i > 0 {
			length |= int(one[0]&0x7F) << shift
			shift += 7
		}
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(conn, body); err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	return append(packet, body...)
}

// dump writes bytes as the page does.
func dump(b []byte) string {
	var out strings.Builder
	for len(b) > 0 {
		text := 0
		for text < len(b) && (b[text] >= ' ' && b[text] <= '~' || b[text] == '\r' || b[text] == '\n') {
			text++
		}
		if text >= 4 {
			fmt.Fprintf(&out, "%q ", b[:text])
			b = b[text:]
			continue
		}
		fmt.Fprintf(&out, "%02x ", b[0])
		b = b[1:]
	}
	return out.String()
}
