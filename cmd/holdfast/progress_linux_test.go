package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/terminal"
)

// onTerminal runs a command in front of a terminal until it has shown a text, or all it shows if
// the text is empty. It returns what was shown.
func onTerminal(t *testing.T, cmd *exec.Cmd, until string) string {
	t.Helper()
	screen, tty := terminal.Open(t)
	cmd.Stdout, cmd.Stderr = tty, tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	var shown strings.Builder
	for chunk := make([]byte, 4096); until == "" || !strings.Contains(shown.String(), until); {
		n, err := screen.Read(chunk) // until the command ends, when a terminal reports an error
		shown.Write(chunk[:n])
		if err != nil {
			break
		}
	}
	if until != "" {
		_ = cmd.Process.Signal(os.Interrupt)
		_, _ = io.Copy(io.Discard, screen)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %v: %q", cmd.Args, err, shown.String())
	}
	return shown.String()
}

// What takes longer shows on a terminal how far it has come, and erases that when it has ended.
func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	const keys = 1_000_000 // nothing is shown for what takes less than a tenth of a second, and reading them takes several
	var lines strings.Builder
	for i := range keys {
		fmt.Fprintf(&lines, "{\"key\":\"key/%07d\",\"value\":\"value\"}\n", i)
	}
	if err := os.WriteFile(in("keys.jsonl"), []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	d := serveIn(t, in("data"))
	imported := onTerminal(t, exec.Command(binary, "import", "-p", d.Port(), in("keys.jsonl")), "")
	if got := holdfastAlone(t, "backup", in("backup"), "--data", in("data")); got.code != 0 {
		t.Fatalf("backup: %+v", got)
	}
	d.Stop()
	serve := testserver.Command(t, "--data", in("data"))

	const erased = "\r\x1b[K"
	for name, test := range map[string]struct{ shown, begins, ends string }{
		"import":  {imported, "\r", "1000000 keys written\r\n"},
		"check":   {onTerminal(t, exec.Command(binary, "check", "--data", in("data")), ""), "\rchecked ", " is sound: 1000000 keys"},
		"restore": {onTerminal(t, exec.Command(binary, "restore", in("backup"), "--data", in("restored")), ""), "\rverified ", "1000000 keys"},
		"salvage": {onTerminal(t, exec.Command(binary, "salvage", in("data"), "--data", in("saved")), ""), "\rcopied ", " holds what was salvaged: 1000000 keys"},
		"serve":   {onTerminal(t, exec.Command(serve[0], serve[1:]...), "listening on"), "\rreading the data in " + in("data") + ": ", "holdfast listening on"},
	} {
		line := strings.Index(test.shown, test.begins)
		gone := strings.LastIndex(test.shown, erased)
		end := strings.LastIndex(test.shown, test.ends)
		if line < 0 || gone < line || end < gone {
			t.Errorf("%s: %.2000q; want %q, its end, and %q", name, test.shown, test.begins, test.ends)
		}
	}
}
