package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// program runs a command line against a server of a test's own.
func program(t *testing.T, s *testserver.Program, args ...string) result {
	t.Helper()
	return start(t, exec.Command(binary, append(args, "-p", s.Port())...), nil)
}

// A retained message comes out of the second server as it went into the first.
func TestRetainedMessagesMove(t *testing.T) {
	t.Parallel()
	from, to := testserver.Run(t), testserver.Run(t)
	pub := func(args ...string) {
		program(t, from, append([]string{"pub", "--retain"}, args...)...).want(t, "pub", 0, "", "")
	}
	pub("plant/7/plain", "21.5")
	pub("plant/7/all", "text", "--qos", "2", "--utf8", "--expiry", "1h", "--content-type", "text/plain", "--response-topic", "plant/7/answers",
		"--correlation-data", "\xff\x01", "-D", "b=2", "-D", "a=1", "-D", "b=3")
	pub("plant/7/zero", "q0", "--qos", "0")
	binaryFile := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(binaryFile, everyByte(), 0o600); err != nil {
		t.Fatal(err)
	}
	pub("plant/7/image", "-f", binaryFile)
	pub("other", "not of the plant")
	program(t, from, "set", "key", "value").want(t, "set", 0, "", "")

	file := filepath.Join(t.TempDir(), "all.jsonl")
	program(t, from, "export", "--retained", "plant/#", "--file", file).want(t, "export", 0, "", file+": 1 key, 4 retained messages\n")
	program(t, to, "import", file).want(t, "import", 0, "", "1 key, 4 retained messages written\n")
	program(t, to, "get", "key").want(t, "get", 0, "value", "")
	if left, _ := filepath.Glob(file + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	records := func(s *testserver.Program) map[string]map[string]any {
		list := make(map[string]map[string]any)
		out := program(t, s, "export", "--no-keys", "--retained", "#")
		for line := range strings.Lines(out.out) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			list[m["topic"].(string)] = m
		}
		return list
	}
	was, is := records(from), records(to)
	delete(was, "other")
	left := func(m map[string]map[string]any) time.Duration {
		at, err := time.Parse(time.RFC3339, m["plant/7/all"]["expires"].(string))
		if err != nil {
			t.Fatal(err)
		}
		delete(m["plant/7/all"], "expires")
		return time.Until(at)
	}
	if a, b := left(was), left(is); a > time.Hour || b > a+2*time.Second {
		t.Errorf("%v were left, and %v after the import", a, b)
	}
	if a, b := fmt.Sprint(was), fmt.Sprint(is); a != b || len(is) != 4 {
		t.Errorf("exported were %s\nafter the import: %s", a, b)
	}
	if user := fmt.Sprint(is["plant/7/all"]["user"]); user != "[[b 2] [a 1] [b 3]]" {
		t.Errorf("user properties %s", user)
	}
}

// An import that was interrupted publishes no message a second time, wherever it was cut off.
func TestImportOfRetainedMessagesResumes(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t)
	const messages = 150 // more than two transactions
	var lines strings.Builder
	for i := range messages {
		fmt.Fprintf(&lines, `{"topic":"counted/%d","payload":"%d"}`+"\n", i, i)
	}
	file := filepath.Join(t.TempDir(), "retained.jsonl")
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	listener := mqtttest.Connect(t, s.Addr)
	listener.Subscribe("counted/#", 1)
	listener.Subscribe("end", 1)

	// All of it is published, and the note of how far the import has come is lost.
	broken := file + "-with-an-end"
	if err := os.WriteFile(broken, []byte(lines.String()+"nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program(t, s, "import", broken).want(t, "import", 2, "", "line 151: not a line of an export")
	note, err := os.ReadFile(broken + ".progress")
	done, id, _ := strings.Cut(string(note), " ")
	if err != nil || done != strconv.Itoa(messages) {
		t.Fatalf("the note says %q, %v", note, err)
	}
	for _, reached := range []int{0, 64, 128} {
		for path, text := range map[string]string{broken: lines.String(), broken + ".progress": fmt.Sprintf("%d %s", reached, id)} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		program(t, s, "import", "--resume", broken).want(t, "import resumed", 0, "", fmt.Sprintf("0 keys written, %d had been published before\n", messages-reached))
	}
	program(t, s, "pub", "end", "end").want(t, "pub", 0, "", "")
	for i := 0; ; i++ {
		m := listener.Receive()
		if string(m.Topic) == "end" {
			if i != messages {
				t.Errorf("%d messages came, want %d", i, messages)
			}
			return
		}
	}
}

// A line that cannot be imported is where an import is resumed, although those behind it were written.
func TestImportResumesAtTheLineThatFailed(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t)
	file := filepath.Join(t.TempDir(), "keys.jsonl")
	lines := []string{`{"key":"a","value":"1"}`, `{"key":"b","value":"1","fencing_token":"99999999999999:0:x"}`, `{"key":"c","value":"1"}`}
	write := func() {
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write()
	program(t, s, "import", file).want(t, "import", 2, "", "line 2, key \"b\": ")
	lines[1] = `{"key":"b","value":"2"}`
	write()
	program(t, s, "import", "--resume", file).want(t, "import resumed", 0, "", "2 keys written\n")
	program(t, s, "get", "b").want(t, "get", 0, "2", "")
}

// Keys that go together in one transaction are written, refused and counted as each by itself: one that is
// refused takes none of the others with it, whatever the server says of the transaction.
func TestImportOfKeysTogether(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	const keys = 200
	for n := range keys {
		fence := ""
		if n == 70 {
			fence = `,"fencing_token":"99999999999999:0:x"`
		}
		fmt.Fprintf(&lines, `{"key":"k/%03d","value":"%d"%s}`+"\n", n, n, fence)
	}
	lines.WriteString(`{"key":"k/007","value":"again"}` + "\n")
	for name, flags := range map[string][]string{"default": nil, "one operation": {"--max-txn-operations", "1"}, "small packets": {"--max-packet-size", "1KiB"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Run(t, flags...)
			file := filepath.Join(t.TempDir(), "keys.jsonl")
			if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			program(t, s, "import", file).want(t, "import", 2, "", "line 71, key \"k/070\": ")
			if note, err := os.ReadFile(file + ".progress"); err != nil || !strings.HasPrefix(string(note), "70 ") {
				t.Errorf("the note says %q, %v; want 70 lines", note, err)
			}
			program(t, s, "get", "k/069").want(t, "get of a key before it", 0, "69", "")
			if r := program(t, s, "import", "--resume", "-k", file); r.code != 1 || !strings.Contains(r.err, ": line 71, ") || !strings.Contains(r.err, "\n130 keys written\n") {
				t.Errorf("import resumed: status %d, %s", r.code, r.err)
			}
			program(t, s, "get", "k/071").want(t, "get of a key behind it", 0, "71", "")
			program(t, s, "get", "k/007").want(t, "get of a key that is in the file twice", 0, "again", "")
			program(t, s, "get", "k/070").want(t, "get of the refused key", 1, "", "no such key")
			program(t, s, "del", "k/100", "k/101").want(t, "del", 0, "", "")
			if r := program(t, s, "import", "--absent", "-k", file); r.code != 1 || !strings.Contains(r.err, "\n2 keys written, 198 existed\n") {
				t.Errorf("import of those that are absent: status %d, %s", r.code, r.err)
			}
		})
	}
}
