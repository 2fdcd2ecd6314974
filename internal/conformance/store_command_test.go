package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

const (
	ok         = "+OK\r\n"
	notApplied = ":-1\r\n"
	missing    = "$-1\r\n"
)

// Protocol, section 3 and 6: what each command answers.
func TestStoreCommands(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	long := strings.Repeat("v", 70_000)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"GET", "k"}, missing},
		{[]string{"DEL", "k"}, ":0\r\n"},
		{[]string{"VDEL", "k", "v"}, ":0\r\n"},
		{[]string{"SET", "k", "v"}, ok},
		{[]string{"GET", "k"}, blob("v")},
		{[]string{"get", "k"}, blob("v")}, // the documents' own examples are lower case
		{[]string{"VDEL", "k", "other"}, notApplied},
		{[]string{"GET", "k"}, blob("v")},
		{[]string{"VDEL", "k", "v"}, ":1\r\n"},
		{[]string{"GET", "k"}, missing},

		{[]string{"SET", "k", "v", "NX"}, ok},
		{[]string{"SET", "k", "w", "NX"}, notApplied},
		{[]string{"SET", "k", "w", "nx"}, notApplied},
		{[]string{"SET", "k", "w", "NEX"}, notApplied}, // compares with the new value
		{[]string{"SET", "k", "v", "NEX"}, ok},
		{[]string{"SET", "k", "w", "NEX", "x"}, notApplied}, // compares with the operand
		{[]string{"SET", "k", "w", "NEX", "v"}, ok},
		{[]string{"GET", "k"}, blob("w")},
		{[]string{"SET", "k", "x", "NEX", "w", "PX", "100000"}, ok},
		{[]string{"SET", "k", "x", "PX", "100000", "NEX"}, ok},
		{[]string{"SET", "k", "x", "NEX", "PX", "100000"}, ok}, // an even number follows: pairs
		{[]string{"SET", "k", "x", "NEX", "PX", "PX", "100000"}, notApplied},
		{[]string{"SET", "new", "v", "NEX"}, ok},

		{[]string{"SET", "k", "v", "PX", "100000.5"}, ok}, // .NET
		{[]string{"SET", "k", "v", "PX", "100000,5"}, ok},
		{[]string{"SET", "k", "v", "VER", "-"}, notApplied},
		{[]string{"SET", "never", "v", "VER", "-"}, ok},
		{[]string{"SET", "k", "v", "VER", "1:1:x"}, notApplied},

		{[]string{"SET", "", "v"}, failure("the key length is zero")},
		{[]string{"GET", ""}, failure("the key length is zero")},
		{[]string{"SET", "empty", ""}, ok},
		{[]string{"GET", "empty"}, blob("")},
		{[]string{"SET", "\x00\xFF\r\n", "$5\r\n\x00"}, ok},
		{[]string{"GET", "\x00\xFF\r\n"}, blob("$5\r\n\x00")},
		{[]string{"SET", "long", long}, ok},
		{[]string{"GET", "long"}, blob(long)},
		{[]string{"DEL", "long"}, ":1\r\n"},

		{[]string{"KEYNOTIFY", "watched", "STOP"}, ":0\r\n"},
		{[]string{"KEYNOTIFY", "watched", "GET"}, ok},
		{[]string{"KEYNOTIFY", "watched"}, ok},
		{[]string{"keynotify", "watched", "stop"}, ok},

		{[]string{"NONSENSE", "k"}, failure("unknown command")},
		{[]string{""}, failure("unknown command")},
		{[]string{"GET"}, failure("wrong number of arguments")},
		{[]string{"GET", "k", "k"}, failure("wrong number of arguments")},
		{[]string{"SET", "k"}, failure("wrong number of arguments")},
		{[]string{"DEL"}, failure("wrong number of arguments")},
		{[]string{"VDEL", "k"}, failure("wrong number of arguments")},
		{[]string{"VDEL", "k", "v", "x"}, failure("wrong number of arguments")},
		{[]string{"SET", "k", "v", "NX", "NEX"}, failure("syntax error")},
		{[]string{"SET", "k", "v", "NX", "NX"}, failure("syntax error")},
		{[]string{"SET", "k", "v", "PX"}, failure("syntax error")},
		{[]string{"SET", "k", "v", "PX", "0"}, failure("syntax error")},
		{[]string{"SET", "k", "v", "PX", "-5"}, failure("syntax error")},
		{[]string{"SET", "k", "v", "PX", "soon"}, failure("syntax error")},
		{[]string{"SET", "k", "v", "PX", "99999999999999999999"}, failure("syntax error")},
		{[]string{"SET", "k", "v", "PX", "1", "PX", "1"}, failure("syntax error")},
		{[]string{"SET", "k", "v", "WHAT"}, failure("syntax error")},
		{[]string{"SET", "k", "v", "VER", "nonsense"}, failure("malformed timestamp")},
		{[]string{"KEYNOTIFY", "k", "WHAT"}, failure("syntax error")},
		{[]string{"KEYNOTIFY", strings.Repeat("k", 33_000)}, failure("syntax error")}, // its topic would be too long
	} {
		if got := r.do(c.args...).Payload; got != c.want {
			t.Errorf("%.200q: got %.200q, want %.200q", c.args, got, c.want)
		}
	}
}

func TestStorePayloadForms(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	for _, payload := range []string{
		"", "*", "*0\r\n", "*-1\r\n", "GET k", "*1\r\n", "*2\r\n$3\r\nGET\r\n", "*2\r\n$3\r\nGET\r\n$1\r\nk", "*2\r\n$3\r\nGET\r\n$1\r\nk\n\r",
		"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nmore", "*2\r\n$3\r\nGET\r\n$-1\r\n", "*2\r\n$3\r\nGET\r\n$x\r\nk\r\n", "*2\r\n$3\r\nGET\r\n+k\r\n",
		"*2\r\n$3\r\nGET\r\n$99999999999999999999\r\nk\r\n", "*99999999999999999999\r\n", "*2\r\n$3\r\nGET\r\n$2000000000\r\nk\r\n",
		"*2000000000\r\n$3\r\nGET\r\n", "*2\n$3\nGET\n$1\nk\n", "$3\r\nGET\r\n", "*+2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
	} {
		if got := r.ask(r.request(payload)).Payload; got != failure("syntax error") {
			t.Errorf("%q: got %q, want a syntax error", payload, got)
		}
	}
}

func TestStoreTimestamps(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	set := func(timestamp string) string {
		m := r.request(command("SET", "k", "v"))
		m.User = [][2]string{{"__ts", timestamp}}
		return r.ask(m).Payload
	}
	tooFar := failure("the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized")
	for timestamp, want := range map[string]string{
		"1:0:n":                       ok, // behind is fine
		"000000000000001:00000:n":     ok,
		ahead(30 * time.Second):       ok,
		ahead(2 * time.Minute):        tooFar,
		"18446744073709551615:0:n":    tooFar,
		"18446744073709551616:0:n":    failure("malformed timestamp"),
		"":                            failure("malformed timestamp"),
		"1:2":                         failure("malformed timestamp"),
		"1:2:":                        failure("malformed timestamp"),
		"1:2:n:m":                     failure("malformed timestamp"),
		"-1:2:n":                      failure("malformed timestamp"),
		"+1:2:n":                      failure("malformed timestamp"),
		" 1:2:n":                      failure("malformed timestamp"),
		"1:99999999999999999999999:n": failure("malformed timestamp"),
	} {
		if got := set(timestamp); got != want {
			t.Errorf("%q: got %q, want %q", timestamp, got, want)
		}
	}
	// On other commands it is ignored.
	for _, args := range [][]string{{"GET", "k"}, {"VDEL", "k", "x"}, {"KEYNOTIFY", "k"}, {"DEL", "k"}} {
		for _, timestamp := range []string{"nonsense", ahead(time.Hour)} {
			m := r.request(command(args...))
			m.User = [][2]string{{"__ts", timestamp}}
			if got := r.ask(m).Payload; strings.HasPrefix(got, "-ERR") {
				t.Errorf("%q with timestamp %q: got %q", args, timestamp, got)
			}
		}
	}
}

func TestStoreClockSkewBound(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *server.Config) { c.MaxClockSkew = 10 * time.Second }).requester()
	m := r.request(command("SET", "k", "v"))
	m.User = [][2]string{{"__ts", ahead(30 * time.Second)}}
	if got := r.ask(m).Payload; !strings.Contains(got, "too far in the future") {
		t.Errorf("got %q", got)
	}
}

// Protocol, section 4: how versions are made and which answers carry one.
func TestStoreVersions(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	set := func(timestamp string, args ...string) hlc.Timestamp {
		t.Helper()
		m := r.request(command(append([]string{"SET"}, args...)...))
		m.User = [][2]string{{"__ts", timestamp}}
		got := r.ask(m)
		if got.Payload != ok {
			t.Fatalf("SET %q: got %q", args, got.Payload)
		}
		return version(t, got)
	}

	// A request that is ahead gives its wall clock; its counter plus one follows.
	wall := uint64(time.Now().Add(20 * time.Second).UnixMilli())
	first := set(fmt.Sprintf("%d:41:me", wall), "k", "v")
	if first != (hlc.Timestamp{Wall: wall, Counter: 42, Node: "StateStore"}) {
		t.Errorf("got %v, want %d:42:StateStore", first, wall)
	}
	// One that is behind: the last version's wall clock, counted on.
	second := set(now(), "other", "v")
	if second != (hlc.Timestamp{Wall: wall, Counter: 43, Node: "StateStore"}) {
		t.Errorf("got %v, want %d:43:StateStore", second, wall)
	}
	// They are printed without padding.
	got := r.want(blob("v"), "GET", "k")
	if text, _ := got.UserProp("__ts"); text != fmt.Sprintf("%d:42:StateStore", wall) {
		t.Errorf("GET: got version %q", text)
	}

	carries := func(what string, m message, want hlc.Timestamp) {
		t.Helper()
		if v := version(t, m); v != want {
			t.Errorf("%s: got version %v, want %v", what, v, want)
		}
	}
	carries("SET not applied", r.want(notApplied, "SET", "k", "w", "NX"), first)
	carries("VDEL of another value", r.want(notApplied, "VDEL", "k", "w"), first)
	carries("GET", r.want(blob("v"), "GET", "k"), first)
	carries("VER equal", r.want(ok, "SET", "k", "v2", "VER", fmt.Sprintf("0%d:00042:StateStore", wall)), hlc.Timestamp{Wall: wall, Counter: 44, Node: "StateStore"})
	carries("DEL", r.want(":1\r\n", "DEL", "k"), hlc.Timestamp{Wall: wall, Counter: 44, Node: "StateStore"})
	carries("VDEL", r.want(":1\r\n", "VDEL", "other", "v"), second)
	for _, args := range [][]string{
		{"GET", "k"}, {"DEL", "k"}, {"VDEL", "k", "v"}, {"SET", "k", "v", "VER", "1:1:x"}, {"KEYNOTIFY", "k"}, {"NONSENSE"}, {"KEYNOTIFY", "k", "STOP"},
	} {
		wantNoVersion(t, fmt.Sprint(args), r.do(args...))
	}
}

// Protocol, section 5.
func TestStoreFencing(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	fenced := func(token string, args ...string) string {
		m := r.request(command(args...))
		m.User = append(m.User, [2]string{"__ft", token})
		return r.ask(m).Payload
	}
	low, middle, high := ahead(-2*time.Second), ahead(-time.Second), now()
	required := failure("a fencing token is required for this request")
	lower := failure("the request fencing token is a lower version than the fencing token protecting the resource")
	tooFar := failure("the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized")

	for _, c := range []struct {
		token string
		args  []string
		want  string
	}{
		{middle, []string{"SET", "k", "v"}, ok},
		{"", []string{"SET", "k", "v"}, required},
		{"", []string{"SET", "k", "v", "NX"}, required}, // before any condition
		{"", []string{"DEL", "k"}, required},
		{"", []string{"VDEL", "k", "other"}, required},
		{"", []string{"GET", "k"}, blob("v")},
		{low, []string{"SET", "k", "w"}, lower},
		{low, []string{"DEL", "k"}, lower},
		{low, []string{"VDEL", "k", "v"}, lower},
		{low, []string{"GET", "k"}, blob("v")},
		{middle, []string{"SET", "k", "w"}, ok},
		{high, []string{"SET", "k", "x", "NX"}, notApplied}, // changes nothing, the token neither
		{middle, []string{"SET", "k", "x"}, ok},
		{high, []string{"SET", "k", "y"}, ok},
		{middle, []string{"SET", "k", "z"}, lower},
		{ahead(time.Hour), []string{"SET", "k", "z"}, tooFar},
		{"nonsense", []string{"SET", "k", "z"}, failure("malformed timestamp")},
		{"nonsense", []string{"GET", "k"}, blob("y")}, // ignored
		{high, []string{"VDEL", "k", "y"}, ":1\r\n"},
		{"", []string{"SET", "k", "v"}, ok}, // the token went with the key
		{high, []string{"DEL", "k"}, ":1\r\n"},
		{low, []string{"DEL", "k"}, ":0\r\n"},
	} {
		var got string
		if c.token == "" {
			got = r.do(c.args...).Payload
		} else {
			got = fenced(c.token, c.args...)
		}
		if got != c.want {
			t.Errorf("%q with token %q: got %q, want %q", c.args, c.token, got, c.want)
		}
	}
}

func TestStoreQuota(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.MaxKeys = 2 })
	r := n.requester()
	exceeded := failure("the quota has been exceeded")
	r.want(ok, "SET", "a", "1")
	r.want(ok, "SET", "b", "1")
	r.want(exceeded, "SET", "c", "1")
	r.want(ok, "SET", "a", "2")
	r.want(notApplied, "SET", "a", "3", "NX") // the condition comes first
	r.want(":1\r\n", "DEL", "b")
	r.want(ok, "SET", "c", "1")

	bytes := start(t, func(c *server.Config) { c.MaxStoreBytes = 10_000 }).requester()
	bytes.want(ok, "SET", "a", strings.Repeat("x", 6000))
	bytes.want(exceeded, "SET", "b", strings.Repeat("x", 6000))
	bytes.want(ok, "SET", "a", strings.Repeat("x", 5000)) // what doesn't grow is always allowed
	bytes.want(ok, "SET", "b", strings.Repeat("x", 1000))
}

func TestStoreScan(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	const count = 2500 // more than a page
	want := make([]string, count)
	var packets []byte
	for i := range want {
		want[i] = fmt.Sprintf("scan/%05d", i)
		m := r.request(command("SET", want[i], "v"))
		m.PacketID = uint16(i + 1)
		packets = append(packets, mqtttest.EncodePublish(mqtt.V5, m)...)
		if (i+1)%250 == 0 {
			r.Write(packets)
			packets = packets[:0]
			for range 250 {
				r.Await("PUBACK", func(p *mqtttest.Packet) bool { return p.Type == mqtt.PUBACK })
			}
		}
	}
	for range count {
		r.Receive() // the answers
	}
	r.want(ok, "SET", "other", "v")

	var got []string
	args := []string{"SCAN", "scan/*"}
	pages := 0
	for {
		keys, token := parsePage(t, r.do(args...).Payload)
		got = append(got, keys...)
		if pages++; token == "" {
			break
		}
		args = []string{"SCAN", "scan/*", token}
		if other := r.do("SCAN", "scan/?*", token).Payload; other != failure("malformed token") {
			t.Errorf("the token with another pattern: got %q", other)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || pages < 2 {
		t.Errorf("got %d keys in %d pages, want %d, each once, in several", len(got), pages, count)
	}
	r.want("*1\r\n*2\r\n"+blob("scan/00010")+blob("scan/00012"), "SCAN", "scan/0001[02]")
	r.want("*1\r\n*0\r\n", "SCAN", "nothing*")
	r.want(failure("malformed token"), "SCAN", "scan/*", "nonsense")
	r.want(failure("syntax error"), "SCAN", "")
	r.want(failure("syntax error"), "SCAN", "[")
}

// Protocol, section 7: values and binary keys come to requests that ask for them.
func TestStoreScanWithOptions(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	text := version(t, r.want(ok, "SET", "scan/a", "v\xff"))
	odd := version(t, r.want(ok, "SET", "scan/\xff", ""))
	textEntry := "*3\r\n" + blob("scan/a") + blob("v\xff") + blob(text.String())
	oddEntry := "*3\r\n" + blob("scan/\xff") + blob("") + blob(odd.String())
	r.want("*1\r\n*1\r\n"+blob("scan/a"), "SCAN", "scan/*")
	r.want("*1\r\n*1\r\n"+textEntry, "SCAN", "scan/*", "VALUES")
	r.want("*1\r\n*2\r\n"+blob("scan/a")+blob("scan/\xff"), "SCAN", "scan/*", "BINARY")
	r.want("*1\r\n*2\r\n"+textEntry+oddEntry, "SCAN", "scan/*", "VALUES", "BINARY")
	r.want("*1\r\n*1\r\n"+oddEntry, "SCAN", "scan/[!\x00-\x7f]", "binary", "values")
	details := textEntry[len("*3\r\n"):]
	r.want("*1\r\n*1\r\n*5\r\n"+details+":-1\r\n$-1\r\n", "SCAN", "scan/*", "VALUES", "DETAILS")
	r.want(failure("syntax error"), "SCAN", "scan/*", "DETAILS")
	r.want(failure("syntax error"), "SCAN", "scan/\xff", "VALUES")
	r.want(failure("syntax error"), "SCAN", "*", "VALUES", "VALUES")
	r.want(failure("wrong number of arguments"), "SCAN", "*", "VALUES", "token")
	r.want(failure("malformed token"), "SCAN", "*", "nonsense", "VALUES")
	r.preview().want(failure("unknown command"), "SCAN", "*", "VALUES")
}

// The time that DETAILS says is never longer than the PX that the key was set with, also right
// behind the SET.
func TestStoreScanSaysNoLaterExpiry(t *testing.T) {
	t.Parallel()
	r := start(t).requester()
	for range 20 {
		set, scan := r.request(command("SET", "k", "v", "PX", "60000")), r.request(command("SCAN", "k", "VALUES", "DETAILS"))
		set.PacketID, scan.PacketID = 1001, 1002
		r.Write(append(mqtttest.EncodePublish(mqtt.V5, set), mqtttest.EncodePublish(mqtt.V5, scan)...))
		r.answer(*set.CorrelationData)
		page := r.answer(*scan.CorrelationData).Payload
		at := strings.LastIndex(page, ":") // of the two elements that DETAILS adds
		var left int64
		if _, err := fmt.Sscanf(page[at:], ":%d\r\n$-1\r\n", &left); err != nil || left < 1 || left > 60_000 {
			t.Errorf("got %q, want a key that expires in 60000 ms at the latest", page)
		}
	}
}

// No page is larger than the client takes, with a token or values or both. A value that
// is too large alone is left out; a key that is can't be told, and that is an error.
func TestStoreScanFitsTheClientsPackets(t *testing.T) {
	t.Parallel()
	n := start(t)
	all := n.requester()
	var want []string
	for i := range 50 {
		key := fmt.Sprintf("scan/%02d%s", i, strings.Repeat("k", i*10))
		all.want(ok, "SET", key, strings.Repeat("v", i*40))
		want = append(want, key)
	}
	for _, options := range [][]string{nil, {"VALUES"}, {"BINARY"}, {"VALUES", "DETAILS"}} {
		const most = 1700
		r := n.requester(mqtttest.MaximumPacketSize(most))
		var got []string
		args := append([]string{"SCAN", "scan/*"}, options...)
		leftOut := 0
		for {
			answer := r.do(args...).Payload
			if !strings.HasPrefix(answer, "*") {
				t.Fatalf("%q: got %q after %d keys", args, answer, len(got))
			}
			leftOut += strings.Count(answer, "\r\n$-1\r\n$")
			for i := range want {
				if strings.Contains(answer, blob(want[i])) {
					got = append(got, want[i])
				}
			}
			if strings.HasPrefix(answer, "*1\r\n") {
				break
			}
			token := answer[strings.LastIndex(answer[:len(answer)-2], "\r\n")+2:]
			args = append([]string{"SCAN", "scan/*", strings.TrimSuffix(token, "\r\n")}, options...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v: got %d keys, want %d, each once", options, len(got), len(want))
		}
		if withValues := len(options) > 0 && options[0] == "VALUES"; withValues != (leftOut > 0) || leftOut == len(want) {
			t.Errorf("%v: %d values left out", options, leftOut)
		}
	}
	small := n.requester(mqtttest.MaximumPacketSize(700))
	small.want(failure("a key is too long for the maximum packet size of the client"), "SCAN", "scan/4*")
}

// parsePage reads an answer to SCAN.
func parsePage(t *testing.T, payload string) (keys []string, token string) {
	t.Helper()
	parts := strings.Split(payload, "\r\n")
	if len(parts) < 2 || parts[0] != "*1" && parts[0] != "*2" || !strings.HasPrefix(parts[1], "*") {
		t.Fatalf("got %.100q, want a page", payload)
	}
	var n int
	if _, err := fmt.Sscanf(parts[1], "*%d", &n); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		keys = append(keys, parts[3+2*i])
	}
	if parts[0] == "*2" {
		token = parts[3+2*n]
	}
	return keys, token
}

func TestStoreKeyExpiry(t *testing.T) {
	t.Parallel()
	n := start(t)
	r := n.requester(mqtttest.ClientID("expiry"))
	r.want(ok, "KEYNOTIFY", "k")
	began := time.Now()
	set := version(t, r.want(ok, "SET", "k", "v", "PX", "300"))
	notified(t, r.client, "expiry", "k", setNotice("v"))

	// Then the key is gone at its deadline, and its deletion has a version of its own.
	gone := notified(t, r.client, "expiry", "k", deleteNotice)
	took := time.Since(began)
	if v := version(t, gone); v.Compare(set) <= 0 {
		t.Errorf("got version %v for the deletion of %v", v, set)
	}
	if took < 300*time.Millisecond { // at most 50 ms more, on a machine that is free
		t.Errorf("the key expired after %v, want 300 ms", took)
	}
	r.want(missing, "GET", "k")
	r.want(ok, "SET", "k", "v", "NX")
	notified(t, r.client, "expiry", "k", setNotice("v"))

	// A SET without PX takes the deadline away, one that isn't applied leaves it.
	r.want(ok, "SET", "kept", "v", "PX", "3000")
	r.want(ok, "SET", "kept", "v")
	r.want(ok, "KEYNOTIFY", "lost")
	r.want(ok, "SET", "lost", "v", "PX", "3000")
	r.want(notApplied, "SET", "lost", "w", "NX")
	notified(t, r.client, "expiry", "lost", setNotice("v"))
	notified(t, r.client, "expiry", "lost", deleteNotice)
	r.want(blob("v"), "GET", "kept")
	r.want(missing, "GET", "lost")
	r.Quiet()
}

func TestStoreDocumentedWire(t *testing.T) {
	t.Parallel()
	n := start(t, func(c *server.Config) { c.Wire = "documented" })
	for _, r := range []*requester{n.requester(mqtttest.ClientID("documented")), n.requester().preview()} {
		fenced := func(token string, args ...string) string {
			m := r.request(command(args...))
			name := map[bool]string{true: "__ft", false: "FencingToken"}[r.topic == invokeTopic]
			m.User = append(m.User, [2]string{name, token})
			return r.ask(m).Payload
		}
		r.want(ok, "SET", "k", "v")
		r.want("-1\r\n", "SET", "k", "v", "NX")
		r.want("-1\r\n", "VDEL", "k", "other")
		r.want(missing, "GET", "nothing")
		fenced(now(), "SET", "k", "v")
		lower := failure("the request fencing token is a lower version that the fencing token protecting the resource")
		if got := fenced(ahead(-time.Second), "SET", "k", "v"); got != lower {
			t.Errorf("got %q, want %q", got, lower)
		}
		r.want(failure("syntax error"), "SET", "k", "v", "PX") // with the space, in both forms
		fenced(now(), "DEL", "k")
	}
	r := n.requester(mqtttest.ClientID("watcher"))
	r.want(ok, "KEYNOTIFY", "k")
	r.want(ok, "SET", "k", "v")
	notified(t, r.client, "watcher", "k", setNotice("v"))
	r.want(":1\r\n", "DEL", "k")
	notified(t, r.client, "watcher", "k", command("NOTIFY", "DEL"))
}

// What the README says of both wire forms.
func TestStoreBeyondTheDocumentsInBothWires(t *testing.T) {
	t.Parallel()
	for _, wire := range []string{"sdk", "documented"} {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			n := start(t, func(c *server.Config) { c.Wire = wire })
			r := n.requester(mqtttest.ClientID("watcher"))
			r.want(ok, "set", "k", "v", "nx")
			r.want(ok, "SET", "k", "v", "NEX", "PX", "60000")
			set := version(t, r.want(ok, "SET", "k", "w"))
			if got := version(t, r.do("SET", "k", "x", "NX")); got != set {
				t.Errorf("a condition that is not met has version %v, want the stored %v", got, set)
			}
			r.want(failure("syntax error"), "KEYNOTIFY", "k", "NONSENSE")

			// The store's version is a token also where it is more than a minute ahead.
			m := r.request(command("SET", "ahead", "v"))
			m.User = [][2]string{{"__ts", ahead(59 * time.Second)}}
			lead := version(t, r.ask(m))
			lead.Wall += 55_000
			m = r.request(command("SET", "fenced", "v"))
			m.User = append(m.User, [2]string{"__ft", lead.String()})
			if got := r.ask(m).Payload; got != ok {
				t.Errorf("a token ahead of the clock, near the store's versions: got %q", got)
			}

			r.want(ok, "KEYNOTIFY", "k", "GET")
			r.want(ok, "SET", "k", "v", "PX", "50")
			set = version(t, notified(t, r.client, "watcher", "k", setNotice("v")))
			gone := r.Receive()
			if v := version(t, gone); v.Compare(set) <= 0 || gone.Payload == setNotice("v") {
				t.Errorf("got %v, want the expiry with a version after %v", gone, set)
			}
		})
	}
}
