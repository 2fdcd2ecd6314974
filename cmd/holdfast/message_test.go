package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// startSub starts a `holdfast sub` and returns when its subscription is made.
func startSub(t *testing.T, port string, args ...string) *watching {
	t.Helper()
	return startUntil(t, "subscribed to", exec.Command(binary, append([]string{"sub", "-v", "-p", port}, args...)...))
}

// pub publishes to the shared server, with standard input.
func pub(t *testing.T, in string, args ...string) result {
	t.Helper()
	return holdfastWith(t, strings.NewReader(in), append([]string{"pub"}, args...)...)
}

func TestPubAndSub(t *testing.T) {
	t.Parallel()
	topic := key(t)
	plain := startSub(t, port, "--count", "4", "-0", "--format", "%p", topic)
	withTopic := startSub(t, port, "--count", "2", "--qos", "2", topic+"/none", topic+"/#")
	file := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(file, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	pub(t, "", topic, "hello").want(t, "arguments", 0, "", "")
	pub(t, "", "-t", topic, "-m", "").want(t, "flags, nothing to say", 0, "", "")
	pub(t, "", topic, "-f", file, "-q", "2").want(t, "a file at QoS 2", 0, "", "")
	pub(t, "from\npipe", topic, "-f", "-", "-q", "0").want(t, "standard input at QoS 0", 0, "", "")
	if got, want := strings.Join(plain.finish(t), "\n"), "hello\x00\x00from a file\x00from\npipe\x00"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	if got := withTopic.finish(t); len(got) != 2 || got[0] != topic+" hello" || got[1] != topic+" " {
		t.Errorf("printed %q, want topics and payloads", got)
	}
}

// Lines of standard input are messages, many of them under way, and come in order.
func TestPubLines(t *testing.T) {
	t.Parallel()
	for _, qos := range []string{"1", "2"} {
		topic := key(t)
		const n = 2007 // twice as many as are under way at a time, and some more
		s := startSub(t, port, "--count", strconv.Itoa(n), "--format", "%p", "-q", qos, topic)
		var in strings.Builder
		for i := range n {
			fmt.Fprintf(&in, "message %d\n", i)
		}
		pub(t, in.String(), "-l", "-q", qos, topic).want(t, "lines", 0, "", "")
		if got := strings.Join(s.finish(t), "\n") + "\n"; got != in.String() {
			t.Errorf("QoS %s: the messages differ from the lines", qos)
		}
	}
	topic := key(t)
	s := startSub(t, port, "--count", "3", "--format", "%p|", topic)
	pub(t, "a\nb\x00\x00c", "-l", "-0", topic).want(t, "ends with NUL", 0, "", "")
	if got := strings.Join(s.finish(t), "\n"); got != "a\nb|\n|\nc|" {
		t.Errorf("printed %q", got)
	}
}

// What comes with a message is sent, and printed.
func TestMessageProperties(t *testing.T) {
	t.Parallel()
	topic := key(t)
	formatted := startSub(t, port, "--count", "1", "-q", "2", "--format", `%t\t%p %x %l %q %r\\%C %R %D %E %P %%`, topic)
	times := startSub(t, port, "--count", "1", "--format", "%I %U", topic)
	asJSON := startSub(t, port, "--count", "2", "-o", "json", topic)
	pub(t, "", topic, "é", "-q", "2", "--utf8", "--content-type", "text/plain", "--response-topic", "answers/1", "--correlation-data", "c1",
		"--expiry", "1500ms", "-D", "a=1", "--user-property", "b=2=3").want(t, "pub", 0, "", "")
	pub(t, "\xff", topic, "-f", "-", "-q", "0").want(t, "pub", 0, "", "")
	if got, want := formatted.finish(t)[0], topic+`	é c3a9 2 2 0\text/plain answers/1 c1 2 a=1 b=2=3 %`; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	if got := times.finish(t)[0]; !regexp.MustCompile(`^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \d{10}\.\d{6}$`).MatchString(got) {
		t.Errorf("times %q", got)
	}
	received := regexp.MustCompile(`"received":"[^"]*"`)
	lines := asJSON.finish(t)
	for i, want := range []string{
		`{"received":"","topic":"T","qos":1,"retain":false,"payload":"é","content_type":"text/plain","response_topic":"answers/1","correlation_base64":"YzE=","expiry":2,"user_properties":[{"name":"a","value":"1"},{"name":"b","value":"2=3"}]}`,
		`{"received":"","topic":"T","qos":0,"retain":false,"payload_base64":"/w=="}`,
	} {
		if got := strings.ReplaceAll(received.ReplaceAllString(lines[i], `"received":""`), topic, "T"); got != want {
			t.Errorf("printed %s\nwant %s", got, want)
		}
	}
	pub(t, "\xff", topic, "-f", "-", "--utf8").want(t, "not the UTF-8 that it is said to be", 2, "", "payload format invalid (0x99)")
}

func TestRetainedMessages(t *testing.T) {
	t.Parallel()
	topic := key(t)
	pub(t, "", "--retain", topic, "kept").want(t, "pub", 0, "", "")
	sub := func(args ...string) result {
		t.Helper()
		return holdfast(t, append([]string{"sub", topic}, args...)...)
	}
	sub("--count", "1", "-F", "%p %r").want(t, "sub", 0, "kept 1\n", "")
	sub("-R", "-W", "100ms").want(t, "without retained messages", 0, "", "")
	sub("-R", "--wait", "100ms", "--count", "2").want(t, "too few when the time is over", 1, "", "0 of 2 messages had come when the time was over")
	pub(t, "", "--retain", topic, "").want(t, "pub of nothing", 0, "", "")
	sub("-W", "100ms").want(t, "after it was deleted", 0, "", "")
}

// A session takes messages while its client is away. Only what was printed is gone.
func TestSubSession(t *testing.T) {
	t.Parallel()
	topic := key(t)
	id := strings.ReplaceAll(topic, "/", "-")
	sub := func(args ...string) result {
		t.Helper()
		return holdfast(t, append([]string{"sub", "-i", id, "--session-expiry", "1h", topic}, args...)...)
	}
	sub("-W", "200ms").want(t, "the session begins", 0, "", "")
	for i := range 3 {
		pub(t, "", topic, strconv.Itoa(i)).want(t, "pub", 0, "", "")
	}
	sub("--count", "1").want(t, "first", 0, "0\n", "")
	sub("--count", "1", "-q", "2").want(t, "second", 0, "1\n", "")
	sub("--count", "1").want(t, "third", 0, "2\n", "")
	sub("-W", "100ms").want(t, "none left", 0, "", "")
}

// A subscriber whose connection is lost comes back by itself.
func TestSubReconnects(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := serveIn(t, data)
	s := startSub(t, d.Port(), "-i", "reader", "--count", "1", "a/#")
	holdfastAlone(t, "session", "kick", "--data", data, "reader").want(t, "kick", 0, "", "")
	if !s.await("connection lost") || !s.await("subscribed again") {
		t.Fatal("it did not say that it has come back")
	}
	d.run("pub", "a/b", "v").want(t, "pub", 0, "", "")
	if got := s.finish(t); len(got) != 1 || got[0] != "a/b v" {
		t.Errorf("printed %q", got)
	}
}

func TestSubInterrupted(t *testing.T) {
	t.Parallel()
	s := startSub(t, port, key(t))
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	s.finish(t)
}

// The first message that the server refuses ends pub, which says how far it came.
func TestPubRefused(t *testing.T) {
	t.Parallel()
	pub(t, "", "$SYS/mine", "v").want(t, "a topic of the server's", 2, "", "not authorized (0x87)")
	pub(t, "", "-q", "2", "$SYS/mine", "v").want(t, "the same at QoS 2", 2, "", "not authorized (0x87)")
	pub(t, strings.Repeat("v\n", 5000), "-l", "$SYS/mine").want(t, "many", 2, "", "; 0 messages had been acknowledged before")
	d := serveIn(t, t.TempDir(), "--max-packet-size", "2KiB", "--max-key-size", "1KiB")
	d.runWith(bytes.NewReader(make([]byte, 3000)), "pub", "a", "-f", "-").want(t, "too large", 2, "", "bytes, the server takes 2048")
}

func TestMessageFlagsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"pub":                             "holdfast pub: no topic is given; usage: holdfast pub [flags] TOPIC [MESSAGE]",
		"pub t":                           "holdfast pub: no message is given: give MESSAGE, --message, -f FILE, or -l",
		"pub t m n":                       `holdfast pub: unexpected argument "n"`,
		"pub a/+ m":                       `holdfast pub: topic "a/+": want UTF-8 that is not empty, without +, # and NUL`,
		"pub t m -q 3":                    `holdfast pub: --qos "3": want 0, 1 or 2`,
		"pub t m --qos":                   "holdfast pub: --qos needs a value: want 0, 1 or 2",
		"pub t m --expiry 0s":             "holdfast pub: --expiry 0s: want a duration from 1s to 4294967295s",
		"pub t m --expiry 5":              `holdfast pub: --expiry "5": want a duration, for example`,
		"pub t m -D novalue":              `holdfast pub: --user-property "novalue": want NAME=VALUE`,
		"pub t m --response-topic a/#":    `holdfast pub: --response-topic "a/#": want UTF-8`,
		"pub t m -0":                      "holdfast pub: --null is for -l only",
		"pub t -f /does/not/exist":        "holdfast pub: --file: open /does/not/exist",
		"pub t -m m -l":                   "holdfast pub: if any flags in the group [message file stdin-lines] are set none of the others can be",
		"pub -p 1 t m":                    "holdfast pub: cannot reach localhost:1: connection refused",
		"sub":                             "holdfast sub: no topic filter is given; usage: holdfast sub [flags] FILTER...",
		"sub a#":                          `holdfast sub: topic filter "a#": want UTF-8 that is not empty, with + only as a whole level`,
		"sub a -q x":                      `holdfast sub: --qos "x": want 0, 1 or 2`,
		"sub a -F %z":                     `holdfast sub: --format "%z": there is no %z; want %t, %p or another`,
		"sub a -F a%":                     `holdfast sub: --format "a%": want a letter after the last %`,
		`sub a -F \q`:                     `holdfast sub: --format "\\q": there is no \q; want \n`,
		"sub a --count -1":                `holdfast sub: --count "-1": want a whole number that is not negative`,
		"sub a --wait -1s":                "holdfast sub: --wait -1s: it must not be negative",
		"sub a --session-expiry 1h":       "holdfast sub: --session-expiry needs a --clientid",
		"sub a --session-expiry 1ms -i x": "holdfast sub: --session-expiry 1ms: want a duration from 1s",
		"sub a -o json -F %p":             "holdfast sub: --output json has a format and an end of line of its own",
		"sub a -o xml":                    `holdfast sub: --output "xml": want text or json`,
		"sub -p 1 a":                      "holdfast sub: cannot reach localhost:1: connection refused",
		"sub statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke -p " + port: "not authorized (0x87)",
	} {
		start(t, exec.Command(binary, strings.Fields(args)...), nil).want(t, args, 2, "", want)
	}
}
