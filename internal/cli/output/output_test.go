package output

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestWord(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"plain":       "plain",
		"päß/日本:1":    "päß/日本:1",
		"":            `""`,
		"two words":   `"two words"`,
		"line\n":      `"line\n"`,
		`say "hi"`:    `"say \"hi\""`,
		"\xff":        `"\xff"`,
		"\x1b[31mred": `"\x1b[31mred"`, // a value must not drive the terminal
	} {
		if got := Word(s); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"two\n lines\t": "two lines", "päß \"日本\"": "päß \"日本\"", "\x1b]0;title\a": `\x1b]0;title\a`, "it's \u202e": `it's \u202e`, "\xff": "\ufffd",
	} {
		if got := OneLine(s); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}

// A terminal gets a line end after the value and an OK after a write; what
// tells it apart is that it is a character device, and not its name.
func TestOnlyATerminalIsSpokenTo(t *testing.T) {
	t.Parallel()
	if IsTerminal(&bytes.Buffer{}) {
		t.Error("a buffer is taken for a terminal")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if IsTerminal(null) {
		t.Errorf("%s is taken for a terminal", os.DevNull)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if IsTerminal(f) {
		t.Error("a file is taken for a terminal")
	}
}
