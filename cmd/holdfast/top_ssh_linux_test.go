package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/terminal"
)

// sshServer is an sshd of the test's own, on loopback, which lets the test in by a key of its own.
type sshServer struct {
	t         *testing.T
	key, port string
}

// startSSH starts it. It skips the test where OpenSSH is not installed.
func startSSH(t *testing.T) *sshServer {
	t.Helper()
	path, err := exec.LookPath("sshd")
	if err != nil {
		path = "/usr/sbin/sshd" // where Debian has it, which few have in their PATH
	}
	for _, name := range []string{path, "ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed (Debian: openssh-server, openssh-client): top is not tried over ssh", name)
		}
	}
	if _, err := os.Stat("/run/sshd"); err != nil && os.Getuid() == 0 {
		t.Skipf("sshd needs /run/sshd: %v", err)
	}
	dir := t.TempDir()
	for _, name := range []string{"key", "host"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	addr, err := process.UnusedAddress()
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config")
	text := fmt.Sprintf("ListenAddress %s\nHostKey %s/host\nAuthorizedKeysFile %s/key.pub\nStrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n", addr, dir, dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	sshd, err := process.Start(exec.Command(path, "-D", "-e", "-f", config), regexp.MustCompile(`Server listening on`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sshd.Kill() })
	if err := sshd.AwaitReady(); err != nil {
		t.Fatal(err)
	}
	return &sshServer{t: t, key: filepath.Join(dir, "key"), port: port}
}

// remote is a command that runs over ssh, on a terminal of 80 columns and 24 lines.
type remote struct {
	*picture
	t       *testing.T
	screen  *os.File
	ssh     *exec.Cmd
	pidFile string
}

// run begins "holdfast top" over ssh, from a terminal of that name.
func (s *sshServer) run(term, data string) *remote {
	s.t.Helper()
	screen, tty := terminal.Open(s.t)
	r := &remote{t: s.t, screen: screen, pidFile: filepath.Join(s.t.TempDir(), "pid")}
	r.resize(80, 24)
	r.ssh = exec.Command("ssh", "-tt", "-F", "none", "-i", s.key, "-p", s.port, "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
		"127.0.0.1", fmt.Sprintf("echo $$ >%s; exec %s top --data %s --every 100ms", r.pidFile, binary, data))
	r.ssh.Env = append(os.Environ(), "TERM="+term)
	r.ssh.Stdin, r.ssh.Stdout, r.ssh.Stderr = tty, tty, tty
	r.ssh.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // so that it hears of another size
	if err := r.ssh.Start(); err != nil {
		s.t.Fatal(err)
	}
	tty.Close()
	r.picture = watch(screen)
	return r
}

func (r *remote) resize(columns, lines uint16) {
	r.t.Helper()
	if err := unix.IoctlSetWinsize(int(r.screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: lines}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *remote) press(keys string) {
	r.t.Helper()
	if _, err := r.screen.WriteString(keys); err != nil {
		r.t.Fatal(err)
	}
}

// awaitEnd waits until ssh has ended, and the program at the other end.
func (r *remote) awaitEnd(want error) {
	r.t.Helper()
	if err := r.ssh.Wait(); fmt.Sprint(err) != fmt.Sprint(want) {
		r.t.Errorf("ssh ended with %v, want %v; the terminal has\n%s", err, want, r.all())
	}
	<-r.ended
	text, err := os.ReadFile(r.pidFile)
	if err != nil {
		r.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		r.t.Fatal(err)
	}
	for end := time.Now().Add(patience); unix.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("the process %d of the command goes on", pid)
		}
	}
}

// Over ssh, on a terminal of 80 columns, top fills the terminal, follows its size, and ends with
// q, with Ctrl-C and with the connection.
func TestTopOverSSH(t *testing.T) {
	t.Parallel()
	s := startSSH(t)
	data := t.TempDir()
	d := serveIn(t, data)
	d.run("set", "press/7", "on").want(t, "set", 0, "", "")

	r := s.run("xterm-256color", data)
	r.await(t, "the page", `(?s)serves clients.+KEYS THAT TAKE MOST.+press/7`)
	page := r.page()
	for line := range strings.Lines(page) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("a line of %d columns: %q", n, line)
		}
	}
	if n := strings.Count(page, "\n"); n >= 24 {
		t.Errorf("the page has %d lines:\n%s", n+1, page)
	}
	r.resize(60, 20)
	r.await(t, "the page is narrower", `(?m)^memory .{52}…$`)
	r.press("q")
	r.awaitEnd(nil)
	if all := r.all(); !strings.HasSuffix(strings.TrimSpace(all), "\x1b[?7h\x1b[?25h\x1b[?1049l") {
		t.Errorf("the screen is left as %q", all[max(0, len(all)-100):])
	}

	r = s.run("vt100", data)
	r.await(t, "the page", "serves clients")
	r.press("\x03")
	r.awaitEnd(nil)

	r = s.run("dumb", data)
	r.awaitEnd(nil)
	if all := r.all(); strings.Contains(all, "\x1b") || !strings.Contains(all, "press/7") {
		t.Errorf("a dumb terminal gets %q", all)
	}

	r = s.run("xterm", data)
	r.await(t, "the page", "serves clients")
	if err := r.ssh.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.awaitEnd(fmt.Errorf("signal: killed"))
}
