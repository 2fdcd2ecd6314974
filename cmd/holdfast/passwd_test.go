package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// The password comes from a flag or from standard input, and the server takes it.
func TestPasswd(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "users")
	edit := func(in string, args ...string) result {
		return start(t, exec.Command(binary, append([]string{"passwd", file, "-I", "1000"}, args...)...), strings.NewReader(in))
	}
	edit("", "alice", "-b", "of alice").want(t, "with a flag", 0, "", "")
	edit("of bob\r\nmore\n", "bob").want(t, "from standard input", 0, "", "")
	edit("of carol", "carol").want(t, "without a newline", 0, "", "")
	edit("", "carol", "--delete").want(t, "deleted", 0, "", "")
	edit("", "carol", "-D").want(t, "deleted twice", 1, "", `no such user in the file: "carol"`)
	f, err := passwd.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if f.Len() != 2 || !f.Verify("alice", []byte("of alice")) || !f.Verify("bob", []byte("of bob")) {
		t.Error("the file does not have what was set")
	}
	edit("\n", "dora").want(t, "an empty password", 2, "", "the password is empty")
	edit("", "a:b", "-b", "x").want(t, "a colon", 2, "", "colon")
	edit("", "dora", "-b", "x", "-D").want(t, "a contradiction", 2, "", "contradict")
	edit("", "dora", "-b", "x", "-I", "10").want(t, "too few iterations", 2, "", "1000")

	s := testserver.Run(t, "--password-file", file)
	login := func(user, password string) result {
		return start(t, exec.Command(binary, "get", "-p", s.Port(), "-u", user, "--password", password, "no such key"), nil)
	}
	login("alice", "of alice").want(t, "the right password", 1, "", "no such key")
	login("alice", "wrong").want(t, "a wrong one", 2, "", "bad user name or password (0x86)")
	start(t, exec.Command(binary, "get", "-p", s.Port(), "no such key"), nil).want(t, "no password", 2, "", "the client has shown no credentials")
}

// What is wrong with the settings of logins is said before the server starts.
func TestServeRefusesLogins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	open, broken, keys := write("open", "", 0o644), write("broken", "alice:x\n", 0o600), write("keys", "{}", 0o600)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"run chmod 600 " + open, []string{"--password-file", open}},
		{broken + ":1: ", []string{"--password-file", broken}},
		{"no such file", []string{"--password-file", dir + "/none"}},
		{"there is no key that can verify a token", []string{"--jwt-keys", keys}},
		{"--jwt-issuer needs --jwt-keys", []string{"--jwt-issuer", "x"}},
		{"--tls-identity needs a listener with --tls-client-ca", []string{"--tls-identity", "san-dns"}},
		{"want cn, san-dns, san-uri, san-email or subject", []string{"--tls-identity", "x"}},
		{"--bind-client-id username needs clients that prove who they are", []string{"--bind-client-id", "username"}},
		{"cannot write the audit log", []string{"--audit-log", dir}},
	} {
		args := append([]string{"serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(dir, "data")}, c.args...)
		start(t, exec.Command(binary, args...), nil).want(t, strings.Join(c.args, " "), 2, "", c.want)
	}
}
