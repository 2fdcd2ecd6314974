package audit

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
)

func open(t *testing.T) (l *Log, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return l, path
}

// lines reads what was written, without the times.
func lines(t *testing.T, path string) (all []map[string]any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if m["time"] == nil {
			t.Errorf("no time in %q", line)
		}
		all = append(all, m)
	}
	return all
}

var alice = &Client{ID: "c1", User: "alice", Owner: "user:alice", Method: "password", Remote: "192.0.2.1:4000", Protocol: 5}

func TestEvents(t *testing.T) {
	t.Parallel()
	l, path := open(t)
	l.Connected(alice, true, true)
	l.Refused(&Client{ID: "c2\n\x00\xff", User: "mallory", Remote: "192.0.2.2:1"}, 0x86, "the user name or the password is wrong")
	l.HandshakeRefused("mqtts://127.0.0.1:8883", "192.0.2.3:1", "CN=x\n"+strings.Repeat("y", maxText), "it is revoked")
	l.HandshakeRefused("mqtts://127.0.0.1:8883", "192.0.2.3:1", "", "none was shown")
	l.Reauthenticated(alice, "")
	l.Reauthenticated(alice, "the token has expired")
	l.Ended(alice, "the token has expired")
	l.Reloaded("policy", []string{"a", "b"}, nil)
	l.Reloaded("policy", []string{"a"}, errors.New("a:3: wrong"))
	l.Backup("/backup", 7, 4096, nil)
	l.Backup("/backup", 0, 0, errors.New("disk full"))
	l.Operated("c1", false)
	l.Operated("c1", true)
	var events []string
	got := lines(t, path)
	for _, m := range got {
		events = append(events, m["event"].(string))
	}
	want := "connected took over refused handshake refused handshake refused re-authenticated re-authentication failed ended configuration changed configuration rejected backup backup failed kicked session deleted"
	if s := strings.Join(events, " "); s != want {
		t.Fatalf("got  %s\nwant %s", s, want)
	}
	for name, value := range map[string]any{"client": "c1", "user": "alice", "owner": "user:alice", "method": "password", "remote": "192.0.2.1:4000", "version": 5.0, "session_present": true} {
		if got[0][name] != value {
			t.Errorf("%s: got %v, want %v", name, got[0][name], value)
		}
	}
	if got[2]["code"] != "0x86" || got[2]["client"] != "c2\n\x00\ufffd" || got[2]["owner"] != nil {
		t.Errorf("refused: %v", got[2])
	}
	if got[3]["subject"] != "CN=x\n"+strings.Repeat("y", maxText-5)+"… (261 bytes)" || got[3]["remote"] != "192.0.2.3:1" || got[3]["listener"] != "mqtts://127.0.0.1:8883" || got[4]["subject"] != nil {
		t.Errorf("refused handshakes: %v, %v", got[3], got[4])
	}
}

// What a client says of itself takes no more than a bounded part of a line.
func TestTextsAreBounded(t *testing.T) {
	t.Parallel()
	l, path := open(t)
	l.Refused(&Client{ID: strings.Repeat("ä", 40_000), User: strings.Repeat("x", maxText)}, 0x85, "too long")
	got := lines(t, path)[0]
	if id := got["client"].(string); id != strings.Repeat("ä", maxText/2)+"… (80000 bytes)" {
		t.Errorf("the client ID is %q", id)
	}
	if got["user"] != strings.Repeat("x", maxText) {
		t.Errorf("a user name at the bound is %q", got["user"])
	}
}

// A line has no control character in it that a terminal may obey, and says which there were.
func TestControlCharactersAreEscaped(t *testing.T) {
	t.Parallel()
	l, path := open(t)
	name := "\x7f\u0080 ä\u009b2J\u009f\u00a0\x1b\u2028é\x7f"
	l.Operated(name, false)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if i := strings.IndexFunc(strings.TrimSuffix(string(text), "\n"), unicode.IsControl); i >= 0 {
		t.Errorf("a control character at %d of %q", i, text)
	}
	if got := lines(t, path)[0]["client"]; got != name {
		t.Errorf("the client is %q, want %q", got, name)
	}
}

func TestNoLog(t *testing.T) {
	t.Parallel()
	var l *Log
	l.Connected(alice, true, true)
	l.Refused(alice, 0, "")
	l.HandshakeRefused("", "", "", "")
	l.Reauthenticated(alice, "")
	l.Ended(alice, "")
	l.Reloaded("", nil, nil)
	l.Backup("", 0, 0, nil)
	l.Operated("", true)
	if l.Reopen() != nil || l.Close() != nil {
		t.Error("want no errors")
	}
}

func TestReopen(t *testing.T) {
	t.Parallel()
	l, path := open(t)
	l.Operated("one", false)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	l.Operated("two", false)
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Operated("three", false)
	if old, fresh := lines(t, path+".1"), lines(t, path); len(old) != 2 || len(fresh) != 1 || fresh[0]["client"] != "three" {
		t.Errorf("got %v and %v", old, fresh)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may read it: %v, %v", info.Mode(), err)
	}
	// Where it can't be opened it goes on in the old file.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err == nil {
		t.Error("a directory is opened as a log")
	}
	l.Operated("four", false)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	l.Operated("five", false)
	if _, err := Open(path, nil); err == nil || !strings.Contains(err.Error(), "cannot write the audit log") {
		t.Errorf("got %v", err)
	}
}

// Clients that are refused can't fill the disk, and don't hide others.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, path := open(t)
		for range 1000 {
			l.Refused(alice, 0x86, "wrong")
			l.HandshakeRefused("mqtts://127.0.0.1:8883", alice.Remote, "CN=mallory", "it is revoked")
			l.Connected(alice, false, false)
		}
		time.Sleep(2 * time.Second)
		counts := map[string]int{}
		for _, m := range lines(t, path) {
			counts[m["event"].(string)]++
		}
		if counts["refused"] != refusedBurst || counts["handshake refused"] != refusedBurst || counts["connected"] != 1000 || counts[suppressed] != 2 {
			t.Errorf("got %v", counts)
		}
	})
}

const suppressed = "log lines were suppressed"
