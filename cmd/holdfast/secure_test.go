package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// site is a directory that init has made, and what init has printed.
type site struct {
	t        *testing.T
	dir      string
	port     string
	commands []string // of the first session
}

// inited runs init in a new directory.
func inited(t *testing.T, flags ...string) *site {
	t.Helper()
	s := &site{t: t, dir: filepath.Join(t.TempDir(), "site")}
	addr := testserver.FreeAddress()
	_, s.port, _ = net.SplitHostPort(addr)
	got := holdfastAlone(t, append([]string{"init", s.dir, "--listen", "mqtts://" + addr}, flags...)...)
	if got.code != 0 || got.err != "" {
		t.Fatalf("init: %+v", got)
	}
	for _, line := range strings.Split(got.out, "\n") {
		if command, is := strings.CutPrefix(line, "  holdfast "); is {
			s.commands = append(s.commands, command)
		}
	}
	if len(s.commands) != 2 {
		t.Fatalf("init says:\n%s", got.out)
	}
	return s
}

func (s *site) file(name string) string { return filepath.Join(s.dir, name) }

// run runs a client's command line against the site's server, as the client whose
// certificate is in NAME.crt; empty: without one.
func (s *site) run(client string, args ...string) result {
	s.t.Helper()
	args = append(args, "--cafile", s.file("ca.crt"), "-p", s.port)
	if client != "" {
		args = append(args, "-C", s.file(client+".crt"), "-K", s.file(client+".key"))
	}
	return holdfastAlone(s.t, args...)
}

// The commands that init prints are a first session over TLS.
func TestInit(t *testing.T) {
	t.Parallel()
	s := inited(t)
	d := testserver.Launch(t, append([]string{binary}, strings.Fields(s.commands[0])...)...)
	if d.Addr == "" {
		t.Fatalf("the server does not start:\n%s", d.Output())
	}
	start(t, exec.Command(binary, strings.Fields(s.commands[1])...), nil).want(t, s.commands[1], 0, "", "")
	s.run("admin", "get", "greeting").want(t, "get", 0, "hello", "")

	// A client does what the policy says, and no other client does anything.
	if got := holdfastAlone(t, "cert", "client", "press-7", "--ca", s.dir); got.code != 0 {
		t.Fatalf("cert client: %+v", got)
	}
	s.run("press-7", "set", "press-7/state", "on").want(t, "its own key", 0, "", "")
	s.run("press-7", "get", "press-7/state", "-i", "press-7:panel").want(t, "its own key, by another name", 0, "on", "")
	s.run("press-7", "get", "greeting", "-i", "press-7").want(t, "another one's key", 2, "", "not authorized")
	s.run("press-7", "get", "press-7/state", "-i", "press-8").want(t, "under another one's name", 2, "", "not authorized")
	s.run("", "get", "greeting").want(t, "without a certificate", 2, "", "not authorized")

	// What only its owner may read, only its owner may read.
	if runtime.GOOS != "windows" {
		for _, name := range []string{"ca.key", "server.key", "admin.key", "passwords"} {
			if info, err := os.Stat(s.file(name)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", name, info.Mode(), err)
			}
		}
	}

	// Nothing is overwritten.
	before, _ := os.ReadFile(s.file("ca.key"))
	holdfastAlone(t, "init", s.dir).want(t, "a second time", 2, "", "nothing is overwritten: name another directory")
	if after, _ := os.ReadFile(s.file("ca.key")); string(after) != string(before) {
		t.Error("the authority's key was overwritten")
	}
	holdfastAlone(t, "init", filepath.Join(t.TempDir(), "x"), "--listen", "mqtt://127.0.0.1:1883").want(t, "without TLS", 2, "", "a secure server listens on mqtts:// or wss://")
}

// Certificates of clients: made, encrypted, revoked while the server runs.
func TestCert(t *testing.T) {
	t.Parallel()
	s := inited(t)
	holdfastAlone(t, "cert", "client", "admin", "--ca", s.dir).want(t, "a name that is taken", 2, "", "admin.key exists already, and is not overwritten")
	second := s.file("second")
	holdfastAlone(t, "cert", "client", "admin", "--ca", s.dir, "--out", second).want(t, "cert client", 0, second+".crt and "+second+".key are valid for 825 days\n", "")
	holdfastAlone(t, "cert", "server", "broker.example.com", "--host", "192.0.2.7", "--ca", s.dir, "--days", "30").want(t, "cert server", 0,
		s.file("broker.example.com")+".crt and "+s.file("broker.example.com")+".key are valid for 30 days\n", "")
	holdfastAlone(t, "cert", "node", "a", "--host", "192.0.2.7", "--ca", s.dir).want(t, "cert node", 0, s.file("a")+".crt and "+s.file("a")+".key are valid for 825 days\n", "")
	encrypted := exec.Command(binary, "cert", "client", "admin", "--ca", s.dir, "--out", s.file("third"), "--encrypt")
	encrypted.Env = append(os.Environ(), "HOLDFAST_KEYPASSWORD=a secret")
	start(t, encrypted, nil).want(t, "an encrypted key", 0, s.file("third")+".crt and "+s.file("third")+".key are valid for 825 days\n", "")
	if key, _ := os.ReadFile(s.file("third.key")); !strings.Contains(string(key), "ENCRYPTED PRIVATE KEY") {
		t.Errorf("the key is not encrypted: %.40s", key)
	}
	holdfastAlone(t, "cert", "client", "x", "--ca", s.dir, "--encrypt").want(t, "no password", 2, "", "give the key's password in HOLDFAST_KEYPASSWORD")
	holdfastAlone(t, "cert", "client", "x", "--ca", t.TempDir()).want(t, "no authority", 2, "", "no authority there")
	holdfastAlone(t, "cert", "client", "x", "--ca", s.dir, "--days", "4000").want(t, "beyond the authority", 2, "", "beyond its authority")

	d := testserver.Launch(t, append([]string{binary}, strings.Fields(s.commands[0])...)...)
	if d.Addr == "" {
		t.Fatalf("the server does not start:\n%s", d.Output())
	}
	s.run("second", "set", "k", "v").want(t, "a second certificate", 0, "", "")
	s.run("third", "get", "k", "-P", "a secret").want(t, "an encrypted key", 0, "v", "")
	s.run("third", "get", "k", "-P", "another").want(t, "with another password", 2, "", "--keypassword does not decrypt it")

	holdfastAlone(t, "cert", "revoke", s.file("second.crt"), "--ca", s.dir).want(t, "cert revoke", 0, "the certificate of CN=admin is revoked\n", "")
	for end := time.Now().Add(patience); !strings.Contains(d.Output(), "was read again"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the revocation list was not read again")
		}
	}
	s.run("second", "get", "k").want(t, "a revoked certificate", 2, "", "cannot reach")
	s.run("admin", "get", "k").want(t, "another certificate", 0, "v", "")
	holdfastAlone(t, "cert", "revoke", s.file("holdfast.yaml"), "--ca", s.dir).want(t, "what is no certificate", 2, "", `no PEM block "CERTIFICATE" in it`)
}

// What is wrong with the configuration is said before the server starts.
func TestConfigurationErrors(t *testing.T) {
	t.Parallel()
	config := func(text string) string {
		file := filepath.Join(t.TempDir(), "holdfast.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for text, want := range map[string]string{
		"max-keyz: 7":                            "holdfast.yaml:1: unknown setting max-keyz; did you mean max-keys?",
		"max-keys: 0":                            `holdfast.yaml:1: max-keys: "0": want a whole number from 1 to 1000000000`,
		"max-keys: 7 GiB":                        `holdfast.yaml:1: max-keys: "7 GiB": want a whole number from 1 to 1000000000`,
		"max-memory: 1":                          `holdfast.yaml:1: max-memory: "1": want a number of bytes`,
		"connect-timeout: 5":                     `holdfast.yaml:1: connect-timeout: "5": want a duration`,
		"durability: never":                      "holdfast.yaml:1: durability: ",
		"auto-subscribe: [a, b qso=1]":           `holdfast.yaml:1: --auto-subscribe "b qso=1": "qso=1": want FILTER, and behind it`,
		"auto-subscribe: ['a/{principal.id}']":   `want {principal.clientId} or {principal.username}`,
		"listeners:\n- url: mqtt://0.0.0.0:1883": "refusing to listen on mqtt://0.0.0.0:1883",
		"listeners:\n- url: mqtts://127.0.0.1:0": "TLS needs a certificate",
		"listeners:\n- url: mqtts://127.0.0.1:0\n  tls-cert: c.crt": "TLS needs a certificate and its private key",
		"tls-client-auth: perhaps":                                  `holdfast.yaml:1: tls-client-auth: "perhaps": want required or optional`,
	} {
		got := holdfastAlone(t, "serve", "--config", config(text), "--data", t.TempDir())
		if lines := strings.Split(strings.TrimSpace(got.err), "\n"); got.code != 2 || !strings.Contains(lines[len(lines)-1], want) {
			t.Errorf("%s: status %d, errors %q; want %q", text, got.code, got.err, want)
		}
	}
	holdfastAlone(t, "serve", "--config", config("max-remember: 1h"), "--remember", "2h").want(t, "a contradiction", 2, "", "--remember 2h0m0s is more than ")
	holdfastAlone(t, "serve", "--config", filepath.Join(t.TempDir(), "none")).want(t, "no such file", 2, "", "no such file")
	holdfastAlone(t, "serve", "--listen", "mqtts://127.0.0.1:0", "--tls-min-version", "1.1").want(t, "an old TLS", 2, "", `--tls-min-version "1.1": want 1.2 or 1.3`)
}

// config prints what serve would have, and where each setting is from.
func TestConfigCommand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "holdfast.yaml")
	if err := os.WriteFile(file, []byte("max-keys: 7\ndata: d\nmax-scans: 8\n\nlisteners:\n- url: mqtt://127.0.0.1:7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "config", "--config", file, "--json", "--max-scans", "2")
	cmd.Env = append(os.Environ(), "HOLDFAST_MAX_KEYS=9", "HOLDFAST_OF_MINE=x")
	got := start(t, cmd, nil)
	for _, line := range []string{
		`{"name":"max-keys","values":["9"],"from":"variable","at":"HOLDFAST_MAX_KEYS"}`,
		`{"name":"data","values":["` + filepath.Join(filepath.Dir(file), "d") + `"],"from":"file","at":"` + file + `:2"}`,
		`{"name":"max-scans","values":["2"],"from":"flag","at":"--max-scans"}`,
		`{"name":"listeners","values":["mqtt://127.0.0.1:7"],"from":"file","at":"` + file + `:5"}`,
		`{"name":"max-watches","values":["10000"],"from":"default","default":"10000"}`,
		`{"name":"listen","values":[],"from":"default"}`,
	} {
		if !strings.Contains(got.out, line+"\n") {
			t.Errorf("status %d; no line\n%s\nin\n%s", got.code, line, got.out)
		}
	}
	if got.code != 0 || got.err != "holdfast config: the variable HOLDFAST_OF_MINE sets nothing: no setting has its name\n" {
		t.Errorf("status %d, %q", got.code, got.err)
	}
	holdfastAlone(t, "config", "--max-keys", "-1").want(t, "a negative value", 2, "", `--max-keys "-1": want a whole number from 1 to 1000000000`)
	holdfastAlone(t, "config", "refrence").want(t, "a wrong name", 2, "", "did you mean reference?")
	if got := holdfastAlone(t, "config", "reference"); got.code != 0 || !strings.Contains(got.out, "\n#max-keys: 1000000\n") {
		t.Errorf("config reference: %+v", got)
	}
}

// A server listens on all URLs that it is given, and says where.
func TestListenURLs(t *testing.T) {
	t.Parallel()
	s := inited(t)
	d := testserver.Run(t, "--listen", "127.0.0.1:0", "--listen", "mqtts://127.0.0.1:0", "--listen", "ws://127.0.0.1:0", "--listen", "wss://127.0.0.1:0/mqtt",
		"--tls-cert", s.file("server.crt"), "--tls-key", s.file("server.key"))
	said := d.Output()
	for _, pattern := range []string{`listening on (127\.0\.0\.1:\d+) (mqtts://127\.0\.0\.1:\d+) with data`, `websocket on (127\.0\.0\.1:\d+) (wss://127\.0\.0\.1:\d+/mqtt)`} {
		addresses := regexp.MustCompile(pattern).FindStringSubmatch(said)
		if addresses == nil {
			t.Fatalf("it said:\n%s", said)
		}
		for i, address := range addresses[1:] {
			if !strings.Contains(address, "://") && strings.HasPrefix(pattern, "websocket") {
				address = "ws://" + address
			}
			args := []string{"-n", address}
			if !strings.Contains(address, "://") {
				host, port, _ := net.SplitHostPort(address)
				args = []string{"-n", host, "-p", port}
			}
			if i == 1 {
				args = append(args, "-T", s.file("ca.crt"))
			}
			holdfastAlone(t, append([]string{"set", "k", address}, args...)...).want(t, "set over "+address, 0, "", "")
			holdfastAlone(t, append([]string{"get", "k"}, args...)...).want(t, "get over "+address, 0, address, "")
		}
	}
}
