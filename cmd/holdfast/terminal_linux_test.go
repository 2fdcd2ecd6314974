package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/terminal"
)

// A pattern deletes after a person has said yes, and says how much it was.
func TestDelAsks(t *testing.T) {
	t.Parallel()
	prefix := key(t) + "/"
	for _, k := range []string{"a", "b"} {
		holdfast(t, "set", prefix+k, "v").want(t, "set", 0, "", "")
	}
	for _, test := range []struct {
		answer, said string
		code         int
	}{
		{"n\n", "nothing was deleted", exit.No},
		{"\n", "nothing was deleted", exit.No},
		{"\x04", "only with --yes", exit.Failed}, // the end of the input
		{"Yes\n", "2 keys were deleted", exit.Done},
	} {
		screen, tty := terminal.Open(t)
		cmd := exec.Command(binary, "del", "-p", port, "--pattern", prefix+"*")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		tty.Close()
		r := bufio.NewReader(screen)
		asked, err := r.ReadString('?')
		if want := `delete 2 keys that match "` + prefix + `*"?`; asked != want || err != nil {
			t.Errorf("it asked %q, %v; want %q", asked, err, want)
		}
		if _, err := io.WriteString(screen, test.answer); err != nil {
			t.Fatal(err)
		}
		said, _ := io.ReadAll(r) // until the command ends, when a terminal reports an error
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(said), test.said) {
			t.Errorf("%q: status %d, %q; want %d and %q", test.answer, code, said, test.code, test.said)
		}
	}
	holdfast(t, "scan", prefix+"*").want(t, "what is left", 0, "", "")
}

// A password is asked for twice, and not shown.
func TestPasswdAsks(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "users")
	for _, test := range []struct {
		again, said string
		code        int
	}{
		{"hush again\n", "the two passwords differ", exit.Failed},
		{"hush hush\n", "", exit.Done},
	} {
		screen, tty := terminal.Open(t)
		cmd := exec.Command(binary, "passwd", file, "alice", "-I", "1000")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		tty.Close()
		r := bufio.NewReader(screen)
		var shown strings.Builder
		for _, step := range []struct{ prompt, answer string }{{"Password for alice: ", "hush hush\n"}, {"The same again: ", test.again}} {
			for !strings.HasSuffix(shown.String(), step.prompt) {
				b, err := r.ReadByte()
				if err != nil {
					t.Fatalf("it showed %q, and not %q: %v", shown.String(), step.prompt, err)
				}
				shown.WriteByte(b)
			}
			awaitNoEcho(t, screen)
			if _, err := io.WriteString(screen, step.answer); err != nil {
				t.Fatal(err)
			}
		}
		rest, _ := io.ReadAll(r)
		shown.Write(rest)
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(shown.String(), test.said) || strings.Contains(shown.String(), "hush") {
			t.Errorf("status %d, %q; want %d and %q", code, shown.String(), test.code, test.said)
		}
	}
	if f, err := passwd.Load(file); err != nil || !f.Verify("alice", []byte("hush hush")) {
		t.Errorf("the password was not set: %v", err)
	}
}

// awaitNoEcho waits until a terminal does not show what is typed.
func awaitNoEcho(t *testing.T, screen *os.File) {
	t.Helper()
	for began := time.Now(); time.Since(began) < mqtttest.Deadline; time.Sleep(time.Millisecond) {
		state, err := unix.IoctlGetTermios(int(screen.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		if state.Lflag&unix.ECHO == 0 {
			return
		}
	}
	t.Fatal("the terminal shows what is typed")
}
