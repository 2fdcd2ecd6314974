package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// testDeb installs a package, runs the server as its user, upgrades, removes and purges it,
// in a root directory that has only what the package's scripts need. dpkg is this machine's.
func testDeb(t *testing.T, first, second string) {
	skipWithoutChroot(t)
	for _, program := range []string{"dpkg", "dpkg-deb", "ldd"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s here: the package is not tried", program)
		}
	}
	r := newRoot(t)
	r.dpkg("--install", first)
	owner := r.user("holdfast")
	r.wantFile("usr/bin/holdfast", 0o755, 0)
	r.wantFile("usr/lib/systemd/system/holdfast.service", 0o644, 0)
	r.wantFile("usr/share/man/man1/holdfast.1.gz", 0o644, 0)
	r.wantFile("etc/holdfast/holdfast.yaml", 0o640, 0)
	r.wantFile("var/lib/holdfast", 0o700, owner)
	if got, want := r.run("/usr/bin/holdfast", "--version"), "holdfast v0.1.0-rc.1\n"; got != want {
		t.Errorf("it prints %q, want %q", got, want)
	}

	// Started as the unit does, it serves; then an administrator changes its configuration.
	server := r.serve()
	r.run("/usr/bin/holdfast", "set", "-n", "127.0.0.1", "-p", server.Port(), "greeting", "hello")
	if status := server.Stop(); status != 0 {
		t.Errorf("the server ended with status %d", status)
	}
	config := filepath.Join(r.dir, "etc/holdfast/holdfast.yaml")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, append(text, "max-keys: 7\n"...), 0o640); err != nil {
		t.Fatal(err)
	}

	// After the upgrade both are there.
	r.dpkg("--install", second)
	if got, want := r.run("/usr/bin/holdfast", "--version"), "holdfast v0.1.0\n"; got != want {
		t.Errorf("after the upgrade it prints %q, want %q", got, want)
	}
	if got := r.run("/usr/bin/holdfast", "config", "--config", "/etc/holdfast/holdfast.yaml"); !regexp.MustCompile(`(?m)^max-keys +7 `).MatchString(got) {
		t.Errorf("after the upgrade the configuration is\n%s", got)
	}
	server = r.serve()
	if got := r.run("/usr/bin/holdfast", "get", "-n", "127.0.0.1", "-p", server.Port(), "greeting"); got != "hello" {
		t.Errorf("after the upgrade the key has %q", got)
	}
	server.Stop()

	// Removed, it leaves data and configuration, and purged neither.
	r.dpkg("--remove", "holdfast")
	r.wantGone("usr/bin/holdfast")
	r.wantGone("usr/lib/systemd/system/holdfast.service")
	r.wantFile("var/lib/holdfast", 0o700, owner)
	r.wantFile("etc/holdfast/holdfast.yaml", 0o640, 0)
	r.dpkg("--purge", "holdfast")
	r.wantGone("var/lib/holdfast")
	r.wantGone("etc/holdfast")
}

// rootDir is a root directory with a few programs of this machine in it.
type rootDir struct {
	t   *testing.T
	dir string
}

// newRoot makes one in which dpkg believes that the packages are there that Holdfast's
// depends on.
func newRoot(t *testing.T) *rootDir {
	t.Helper()
	r := &rootDir{t, t.TempDir()}
	libraries := map[string]bool{}
	library := regexp.MustCompile(`(?m)(/\S+) \(0x`)
	for _, name := range []string{"sh", "getent", "useradd", "install", "chown", "chmod", "rm"} {
		path := programOf(t, name)
		copyFile(t, path, filepath.Join(r.dir, "usr/bin", name), 0o755)
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			t.Skipf("ldd %s: %v", path, err)
		}
		for _, m := range library.FindAllStringSubmatch(string(out), -1) {
			libraries[m[1]] = true
		}
	}
	for path := range libraries {
		copyFile(t, path, filepath.Join(r.dir, path), 0o755)
	}
	if err := os.Symlink("usr/bin", filepath.Join(r.dir, "bin")); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"etc/passwd":          "root:x:0:0:root:/root:/bin/sh\n",
		"etc/group":           "root:x:0:\n",
		"etc/shadow":          "root:*:19000:0:99999:7:::\n",
		"etc/gshadow":         "root:*::\n",
		"etc/nsswitch.conf":   "passwd: files\ngroup: files\nshadow: files\ngshadow: files\n",
		"etc/login.defs":      "",
		"dev/null":            "",
		"usr/sbin/nologin":    "#!/bin/sh\nexit 1\n",
		"var/lib/dpkg/status": "Package: passwd\nStatus: install ok installed\nMaintainer: test\nArchitecture: all\nVersion: 1\nDescription: useradd\n\n",
	} {
		path := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"dev/null", "usr/sbin/nologin"} {
		if err := os.Chmod(filepath.Join(r.dir, name), 0o777); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, name := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "tmp", "run"} {
		if err := os.MkdirAll(filepath.Join(r.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// programOf finds a program, also where only root's path leads.
func programOf(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode()&0o111 != 0 {
			return filepath.Join(dir, name)
		}
	}
	t.Skipf("there is no %s here: the package is not tried", name)
	return ""
}

func (r *rootDir) dpkg(args ...string) {
	r.t.Helper()
	cmd := exec.Command("dpkg", append([]string{"--root=" + r.dir}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// run runs a program in the root directory, and returns what it printed.
func (r *rootDir) run(args ...string) string {
	r.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir}
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// serve runs the command of the unit as its user, on a free port, as the tests share a
// network.
func (r *rootDir) serve() *testserver.Program {
	r.t.Helper()
	unit, err := os.ReadFile(filepath.Join(r.dir, "usr/lib/systemd/system/holdfast.service"))
	if err != nil {
		r.t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindSubmatch(unit)
	if found == nil {
		r.t.Fatal("the unit has no ExecStart")
	}
	args := append([]string{"env", "-i", "HOLDFAST_LISTEN=127.0.0.1:0", programOf(r.t, "chroot"), "--userspec=holdfast", r.dir}, strings.Fields(string(found[1]))...)
	p := testserver.Launch(r.t, args...)
	if p.Addr == "" {
		r.t.Fatalf("the server did not start:\n%s", p.Output())
	}
	return p
}

// user is the number of a user.
func (r *rootDir) user(name string) uint32 {
	r.t.Helper()
	fields := strings.Split(r.run("/usr/bin/getent", "passwd", name), ":")
	if len(fields) < 7 {
		r.t.Fatalf("the user %s is %q", name, fields)
	}
	if shell := strings.TrimSpace(fields[6]); shell != "/usr/sbin/nologin" {
		r.t.Errorf("the shell of %s is %s", name, shell)
	}
	id, err := strconv.ParseUint(fields[2], 10, 32)
	if err != nil {
		r.t.Fatal(err)
	}
	return uint32(id)
}

func (r *rootDir) wantFile(name string, mode os.FileMode, owner uint32) {
	r.t.Helper()
	info, err := os.Stat(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Error(err)
		return
	}
	if got := info.Sys().(*syscall.Stat_t).Uid; info.Mode().Perm() != mode || got != owner {
		r.t.Errorf("%s has mode %v and owner %d, want %v and %d", name, info.Mode().Perm(), got, mode, owner)
	}
}

func (r *rootDir) wantGone(name string) {
	r.t.Helper()
	if _, err := os.Stat(filepath.Join(r.dir, name)); err == nil {
		r.t.Errorf("%s is still there", name)
	} else if !os.IsNotExist(err) {
		r.t.Error(fmt.Errorf("%s: %w", name, err))
	}
}
