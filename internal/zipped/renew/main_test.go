package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/zipped"
)

// A directory of compressed files follows its sources: changed, new and removed ones.
func TestRenew(t *testing.T) {
	t.Parallel()
	source, target := filepath.Join(t.TempDir(), "web"), filepath.Join(t.TempDir(), "zipped")
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(source, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	has := func(name, want string) {
		t.Helper()
		got, err := os.ReadFile(filepath.Join(target, name+".gz"))
		if err != nil {
			t.Fatal(err)
		}
		if plain, err := zipped.Plain(got); err != nil || string(plain) != want {
			t.Errorf("%s is %q, want %q (%v)", name, plain, want, err)
		}
	}
	renewed := func() {
		t.Helper()
		if err := renew(source, target); err != nil {
			t.Fatal(err)
		}
	}
	write("a.txt", "first")
	write("js/b.js", "let b")
	renewed()
	has("a.txt", "first")
	has("js/b.js", "let b")
	write("a.txt", "second")
	write("js/c.js", "")
	if err := os.Remove(filepath.Join(source, "js", "b.js")); err != nil {
		t.Fatal(err)
	}
	renewed()
	has("a.txt", "second")
	has("js/c.js", "")
	if _, err := os.Stat(filepath.Join(target, "js", "b.js.gz")); !os.IsNotExist(err) {
		t.Errorf("the file without a source is still there: %v", err)
	}
	if err := renew(filepath.Join(source, "a.txt"), filepath.Join(target, "one.gz")); err != nil {
		t.Fatal(err)
	}
	has("one", "second")
	if err := renew(filepath.Join(source, "nothing"), target); err == nil {
		t.Error("a source that is not there is no error")
	}
}
