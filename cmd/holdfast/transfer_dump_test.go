package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// runServer starts a server of Debian, and returns when it takes connections at addr.
func runServer(t *testing.T, addr, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("no %s: install Debian's package (%v)", name, err)
	}
	var out bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	for deadline := time.Now().Add(patience); ; {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s has ended: %v\n%s", name, err, out.String())
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen on %s", name, addr)
		}
	}
}

// redisCLI runs commands on a server of Redis, and returns what the last one answers.
func redisCLI(t *testing.T, addr string, in string, args ...string) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command("redis-cli", append([]string{"-p", port}, args...)...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "ERR") {
		t.Fatalf("redis-cli %q: %v: %s", args, err, out)
	}
	return string(out)
}

// The strings of a real Redis become keys, with their expiry, and of everything else the command
// says that it is left out.
func TestImportFromRedis(t *testing.T) {
	t.Parallel()
	addr := testserver.FreeAddress()
	_, redisPort, _ := net.SplitHostPort(addr)
	runServer(t, addr, "redis-server", "--port", redisPort, "--bind", "127.0.0.1", "--save", "")
	if _, err := exec.LookPath("redis-cli"); err != nil {
		t.Skip("redis-cli, which writes the keys that are imported, is not installed (Debian: redis-tools)")
	}
	long := strings.Repeat("abcabcabd", 1000) // which Redis compresses
	huge := strings.Repeat("k", 70<<10)       // longer than a key may be
	strs := map[string]string{
		"plain": "value", "small": "-7", "int16": "-3000", "int32": "1234567", "int64": "123456789012345", "empty": "", "long": long, "bytes/\xff\x01": string(everyByte()),
	}
	for k, v := range strs {
		redisCLI(t, addr, v, "-x", "SET", k)
	}
	redisCLI(t, addr, "", "SET", "expires", "soon", "EX", "3600")
	redisCLI(t, addr, "", "SET", "", "the empty key")
	redisCLI(t, addr, "", "SET", huge, "v")
	var script strings.Builder
	for i := range 600 { // enough for the forms of large keys
		fmt.Fprintf(&script, "RPUSH list/large item%d\nSADD set/large m%d\nZADD zset/large %d.5 m%d\nHSET hash/large f%d v%d\nXADD stream * f %d\n", i, i, i, i, i, i, i)
	}
	script.WriteString("RPUSH list/small a b\nSADD set/ints 1 2 3\nSADD set/small a b\nZADD zset/small 1 a inf b\nHSET hash/small f v\n" +
		"XGROUP CREATE stream g 0\nXREADGROUP GROUP g consumer COUNT 5 STREAMS stream >\nSELECT 3\nSET elsewhere v\n")
	redisCLI(t, addr, script.String())

	s := testserver.Run(t)
	dump := filepath.Join(t.TempDir(), "dump.rdb")
	redisCLI(t, addr, "", "--rdb", dump)
	r := program(t, s, "import", "--from", "redis", dump)
	if r.code != 2 || !strings.Contains(r.err, "a key has at ") {
		t.Errorf("a key that is too short or too long: status %d, %s", r.code, r.err)
	}
	r = program(t, s, "import", "--from", "redis", "--keep-going", dump)
	want := "9 keys written, 1 of other databases left out (--redis-db), 2 of the type hash left out, 2 of the type list left out, 3 of the type set left out, 1 of the type stream left out, 2 of the type zset left out\n"
	for _, part := range []string{want, `key "list/large": of the type list left out` + "\n", "a key has at least one byte", "a key has at most 65536 bytes", "2 entries could not be imported"} {
		if !strings.Contains(r.err, part) {
			t.Errorf("%s\ndoes not have %q", r.err, part)
		}
	}
	if r.code != 1 {
		t.Errorf("status %d, want 1", r.code)
	}
	for k, v := range strs {
		program(t, s, "get", k).want(t, "get "+k, 0, v, "")
	}
	if out := program(t, s, "export", "expires").out; !strings.Contains(out, `"expires":"`) {
		t.Errorf("a key with expiry: %s", out)
	}
	program(t, s, "import", "--from", "redis", "--redis-db", "3", "--keep-going", dump)
	program(t, s, "get", "elsewhere").want(t, "get from database 3", 0, "v", "")

	// A damaged dump is noticed, wherever it is.
	whole, err := os.ReadFile(dump)
	if err != nil {
		t.Fatal(err)
	}
	for _, damage := range []struct{ what, says string }{
		{"cut", "the dump is cut off"}, {"changed", "byte "}, {"other", "not a dump of Redis"},
	} {
		text := bytes.Clone(whole)
		switch damage.what {
		case "cut":
			text = text[:len(text)-9]
		case "changed":
			text[len(text)-1]++ // of the checksum
		case "other":
			text = []byte("nothing of Redis")
		}
		if r := start(t, exec.Command(binary, "import", "--from", "redis", "--keep-going", "-p", s.Port(), "-"), bytes.NewReader(text)); r.code != 2 || !strings.Contains(r.err, damage.says) {
			t.Errorf("%s: status %d, %s; want %q", damage.what, r.code, r.err, damage.says)
		}
	}
}

// A string of Redis that is larger than a packet of the server is named, with its size and without being
// read, and the keys behind it can be imported.
func TestImportOfTooLargeRedisStrings(t *testing.T) {
	t.Parallel()
	const references = 800_000 // of 264 bytes each, of 3 bytes in the dump: 211 MB
	length := func(n int) string { return string([]byte{0x80, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) }
	packed := "\x00x" + strings.Repeat("\xe0\xff\x00", references)
	size := 1 + 264*references
	dump := filepath.Join(t.TempDir(), "dump.rdb")
	text := "REDIS0011" +
		"\x00\x05plain" + length(200<<10) + strings.Repeat("v", 200<<10) +
		"\x00\x06packed\xc3" + length(len(packed)) + length(size) + packed +
		"\x00\x04next\x01v" + "\xff" + strings.Repeat("\x00", 8)
	if err := os.WriteFile(dump, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := testserver.Run(t, "--max-packet-size", "100KiB")
	plain := dump + `: entry 1: key "plain": its value has 204800 bytes, and the server takes packets of 102400 bytes at most (--max-packet-size)`
	huge := fmt.Sprintf(`%s: entry 2: key "packed": its value has %d bytes, and the server takes packets of 102400 bytes at most (--max-packet-size)`, dump, size)
	if r := program(t, s, "import", "--from", "redis", dump); r.code != 2 || !strings.Contains(r.err, plain) {
		t.Errorf("status %d, %s; want %q", r.code, r.err, plain)
	}
	r := program(t, s, "import", "--from", "redis", "--keep-going", dump)
	if want := plain + "\n" + huge + "\n1 key written\n"; r.code != 1 || !strings.HasPrefix(r.err, want) {
		t.Errorf("--keep-going: status %d, %s; want %s", r.code, r.err, want)
	}
	program(t, s, "get", "next").want(t, "get", 0, "v", "")
}

// What a real etcd answers can be imported.
func TestImportFromEtcd(t *testing.T) {
	t.Parallel()
	addr, peer := testserver.FreeAddress(), testserver.FreeAddress()
	runServer(t, addr, "etcd", "--data-dir", "data", "--listen-client-urls", "http://"+addr, "--advertise-client-urls", "http://"+addr,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer, "--initial-cluster", "default=http://"+peer)
	ask := func(path string, body map[string]any) (answer []byte) {
		text, _ := json.Marshal(body)
		for deadline := time.Now().Add(patience); ; {
			r, err := http.Post("http://"+addr+path, "application/json", bytes.NewReader(text))
			if err == nil {
				answer, err = io.ReadAll(r.Body)
				r.Body.Close()
				if err == nil && r.StatusCode == http.StatusOK {
					return answer
				}
			}
			if time.Now().After(deadline) { // it may have no leader yet
				t.Fatalf("%s: %v %s", path, err, answer)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	base64d := base64.StdEncoding.EncodeToString
	var lease struct{ ID string }
	if err := json.Unmarshal(ask("/v3/lease/grant", map[string]any{"TTL": 3600}), &lease); err != nil || lease.ID == "" {
		t.Fatalf("%v, lease %+v", err, lease)
	}
	ask("/v3/kv/put", map[string]any{"key": base64d([]byte("plain")), "value": base64d([]byte("value"))})
	ask("/v3/kv/put", map[string]any{"key": base64d(everyByte()[1:]), "value": base64d(everyByte())})
	ask("/v3/kv/put", map[string]any{"key": base64d([]byte("leased")), "value": base64d([]byte("v")), "lease": lease.ID})
	all := ask("/v3/kv/range", map[string]any{"key": base64d([]byte{0}), "range_end": base64d([]byte{0})})

	s := testserver.Run(t)
	r := start(t, exec.Command(binary, "import", "--from", "etcd", "-p", s.Port(), "-"), bytes.NewReader(all))
	r.want(t, "import", 0, "", "3 keys written, 1 without the expiry of a lease, which etcd does not print\n")
	program(t, s, "get", "plain").want(t, "get", 0, "value", "")
	program(t, s, "get", "leased").want(t, "get", 0, "v", "")
	program(t, s, "get", string(everyByte()[1:])).want(t, "get of every byte", 0, string(everyByte()), "")
}

// With --keep-going a line that is not right is named, by file and number, and the others are imported.
func TestImportKeepsGoing(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t, "--max-packet-size", "100KiB")
	large := strings.Repeat("v", 120<<10)
	lines := []string{
		`{"key":"first","value":"1"}`,
		`nonsense`,
		`{"key":"large","value":"` + large + `"}`,
		`{"topic":"a","payload":"1"}`,
		`{"topic":"large","payload":"` + large + `"}`,
		`{"topic":"a/#","payload":"1"}`,
		`{"topic":"b","payload":""}`,
		`{"topic":"c","payload":"` + large[:60<<10] + `"}`, // the two make a transaction that is too large
		`{"topic":"d","payload":"` + large[:60<<10] + `"}`,
		`{"topic":"$SYS/broker/x","payload":"refused"}`,
		`{"topic":"late","payload":"1","expires":"2020-01-01T00:00:00Z"}`,
		`{"key":"","value":"1"}`,
		`{"key":"last","value":"1"}`,
	}
	file := filepath.Join(t.TempDir(), "some.jsonl")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	program(t, s, "import", file).want(t, "import", 2, "", file+": line 2: not a line of an export: ")
	r := program(t, s, "import", "-k", file)
	var wrong []string
	for line := range strings.Lines(r.err) {
		if rest, of := strings.CutPrefix(line, file+": line "); of {
			number, _, _ := strings.Cut(rest, ",")
			number, _, _ = strings.Cut(number, ":")
			wrong = append(wrong, number)
		}
	}
	if got := strings.Join(wrong, " "); got != "2 3 5 6 7 10 12" || r.code != 1 {
		t.Errorf("status %d, wrong are the lines %s:\n%s", r.code, got, r.err)
	}
	if want := "2 keys, 3 retained messages written, 1 had expired\n"; !strings.Contains(r.err, want) {
		t.Errorf("%s\ndoes not have %q", r.err, want)
	}
	for _, k := range []string{"first", "last"} {
		program(t, s, "get", k).want(t, "get "+k, 0, "1", "")
	}
	if out := program(t, s, "export", "--no-keys", "--retained", "#").out; strings.Count(out, "\n") != 3 {
		t.Errorf("retained are %s", strconv.Quote(out))
	}
}
