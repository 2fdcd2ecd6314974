package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/terminal"
)

// Where the output is no terminal, one page is printed, with the key and the session that take
// most before others.
func TestTopPrints(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := serveIn(t, data)
	d.run("set", "small", "x").want(t, "set", 0, "", "")
	d.run("set", "large", strings.Repeat("x", 100_000)).want(t, "set", 0, "", "")
	away := mqtttest.Connect(t, d.Addr, mqtttest.Persistent("sensor-7"))
	away.Subscribe("plant/#", 1)
	away.Disconnect()
	away.AwaitEnd()
	d.run("pub", "plant/7", "on").want(t, "pub", 0, "", "")
	got := start(t, exec.Command(binary, "top", "--data", data), nil)
	want := regexp.MustCompile(`(?s)^holdfast .+ up .+serves clients.+\nstore +2 keys +97\.7 KiB .+\nKEYS.+\nlarge +97\.7 KiB 100\.0 %\nsmall +6 B +0\.0 %\n.+\nsensor-7 +away +\d+ B +1 +1\n`)
	if got.code != exit.Done || got.err != "" || !want.MatchString(got.out) {
		t.Errorf("status %d, errors %q, and\n%s", got.code, got.err, got.out)
	}
	for line := range strings.Lines(got.out) {
		if len([]rune(line)) > 81 {
			t.Errorf("a line of more than 80 columns: %q", line)
		}
	}
	nowhere := t.TempDir()
	for args, want := range map[string]string{"": "no server can be reached through " + nowhere, "--every 1ms": "--every", "--every 2h": "--every"} {
		start(t, exec.Command(binary, append([]string{"top", "--data", nowhere}, strings.Fields(args)...)...), nil).want(t, args, exit.Failed, "", want)
	}
}

// On a terminal the page changes with the server, has the terminal's size also after that has
// changed, says when the server has gone and shows it when it is back, and q ends it.
func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := serveIn(t, data)
	screen, tty := terminal.Open(t)
	resize := func(columns, lines uint16) {
		t.Helper()
		if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: lines}); err != nil {
			t.Fatal(err)
		}
	}
	resize(80, 24)
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "top", "--data", data, "--every", "100ms")
	cmd.Env = append(os.Environ(), "TERM=xterm")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := watch(screen)
	p.await(t, "the page", "serves clients")
	d.run("set", "press/7", "on").want(t, "set", 0, "", "")
	p.await(t, "the new key is counted", `store +1 key `)
	resize(60, 30)
	p.await(t, "the page is narrower", `(?m)^memory .{52}…$`)
	d.Kill()
	p.await(t, "the server has gone", "NO ANSWER   no server can be reached")
	serveIn(t, data)
	p.await(t, "it is back", "serves clients")
	if strings.Count(p.page(), "\n") >= 30 {
		t.Errorf("the page has more lines than the terminal:\n%s", p.page())
	}
	if _, err := screen.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is left as %+v, %v; it was %+v", after, err, before)
	}
	tty.Close()
	<-p.ended
	if all := p.all(); !strings.HasPrefix(all, "\x1b[?1049h") || !strings.HasSuffix(all, "\x1b[?7h\x1b[?25h\x1b[?1049l") {
		t.Errorf("the screen is left as %q", all[max(0, len(all)-100):])
	}
}

// A terminal that cannot be drawn on gets one page of its width as text.
func TestTopOnADumbTerminal(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	serveIn(t, data)
	screen, tty := terminal.Open(t)
	if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 60, Row: 24}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "top", "--data", data)
	cmd.Env = append(os.Environ(), "TERM=dumb")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := watch(screen)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	tty.Close()
	<-p.ended
	if all := p.all(); strings.Contains(all, "\x1b") || !regexp.MustCompile(`(?m)^memory .{52}…\r?$`).MatchString(all) {
		t.Errorf("it prints %q", all)
	}
}

// Ctrl-C and the end of the terminal end it, too.
func TestTopEnds(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	serveIn(t, data)
	for name, end := range map[string]func(screen *os.File) error{
		"Ctrl-C":   func(screen *os.File) error { _, err := screen.WriteString("\x03"); return err },
		"hang-up":  func(screen *os.File) error { return screen.Close() },
		"a letter": func(screen *os.File) error { _, err := screen.WriteString("xQ"); return err },
	} {
		screen, tty := terminal.Open(t)
		cmd := exec.Command(binary, "top", "--data", data)
		cmd.Env = append(os.Environ(), "TERM=xterm")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		tty.Close()
		buffer := make([]byte, 1<<16)
		for shown := ""; !strings.Contains(shown, "serves clients"); {
			n, err := screen.Read(buffer)
			if err != nil {
				t.Fatal(err)
			}
			shown += string(buffer[:n])
		}
		if err := end(screen); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			t.Fatalf("%s does not end it", name)
		}
	}
}

// picture is what a program has written to a terminal.
type picture struct {
	ended chan struct{}

	mu   sync.Mutex
	text string // under mu
}

// watch reads what a program writes to a terminal.
func watch(screen *os.File) *picture {
	p := &picture{ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		for buffer := make([]byte, 1<<16); ; {
			n, err := screen.Read(buffer)
			p.mu.Lock()
			p.text += string(buffer[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

func (p *picture) all() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text
}

var sequences = regexp.MustCompile(`\x1b\[[?0-9]*[A-Za-z]|\r`)

// page is the last whole page.
func (p *picture) page() string {
	pages := strings.Split(p.all(), "\x1b[H")
	for i := len(pages) - 1; i > 0; i-- {
		if text, _, whole := strings.Cut(pages[i], "\x1b[J"); whole {
			return sequences.ReplaceAllString(text, "")
		}
	}
	return ""
}

// await waits until the page shows what fits the pattern.
func (p *picture) await(t *testing.T, what, pattern string) {
	t.Helper()
	for end := time.Now().Add(patience); !regexp.MustCompile(pattern).MatchString(p.page()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v; the page is\n%s", what, patience, p.page())
		}
	}
}
