package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// next waits for a line that the command prints, and replaces versions by V.
func (w *watching) next(t *testing.T) string {
	t.Helper()
	select {
	case line := <-w.lines:
		return regexp.MustCompile(`\d+:\d+:[^\s"]+`).ReplaceAllString(line, "V")
	case <-time.After(patience):
		t.Fatal("it prints nothing")
		return ""
	}
}

// A watch of a prefix tells every change of the keys that are there, and of those that
// come the state in which it finds them, and then every change.
func TestWatchPrefix(t *testing.T) {
	t.Parallel()
	prefix := key(t) + "/[a]*\xff/" // nothing of it is taken for a pattern
	quoted := func(k string) string { return output.Word(prefix + k) }
	set := func(k, v string) {
		t.Helper()
		holdfast(t, "set", k, v).want(t, "set", 0, "", "")
	}
	set(prefix+"there", "1")
	set(strings.Replace(prefix, "[a]", "a", 1)+"other", "1")
	w := startWatch(t, "--prefix", "--rescan", "20ms", "--count", "6", prefix)
	expect := func(want string) {
		t.Helper()
		if got := w.next(t); got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
	}
	set(prefix+"there", "2")
	expect(`set ` + quoted("there") + ` 2 V`)
	set(prefix+"new", "1")
	expect(`set ` + quoted("new") + ` 1 V gap`)
	set(prefix+"new", "2")
	expect(`set ` + quoted("new") + ` 2 V`)
	holdfast(t, "del", prefix+"new").want(t, "del", 0, "", "")
	expect(`deleted ` + quoted("new") + ` V`)
	set(prefix+"there", "3")
	expect(`set ` + quoted("there") + ` 3 V`)
	holdfast(t, "del", prefix+"there").want(t, "del", 0, "", "")
	expect(`deleted ` + quoted("there") + ` V`)
	if left := w.finish(t); len(left) > 0 {
		t.Errorf("printed %q besides", left)
	}
}

// At the server's bound of watches the command ends, and says which setting it is.
func TestWatchPrefixAtTheBoundOfWatches(t *testing.T) {
	t.Parallel()
	d := serveIn(t, t.TempDir(), "--max-watches", "2")
	for _, k := range []string{"a/1", "a/2"} {
		d.run("set", k, "v").want(t, "set", 0, "", "")
	}
	w := startUntil(t, `watching the keys that begin with "a/"`, exec.Command(binary, "watch", "-v", "-p", d.Port(), "--prefix", "--rescan", "20ms", "--count", "1", "a/"))
	d.run("set", "a/2", "w").want(t, "set", 0, "", "")
	w.finish(t)
	d.run("set", "a/3", "v").want(t, "set", 0, "", "")
	d.run("watch", "--prefix", "a/").want(t, "one key too many", 2, "", `more keys begin with "a/" than the server lets this client watch: its --max-watches`)
}

func TestWatchRefusesContradictions(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"watch k --rescan 1s":                         "holdfast watch: --rescan is for --prefix only",
		"watch --prefix k --rescan 1ms":               "holdfast watch: --rescan 1ms: want a duration of at least 10ms",
		"watch --prefix k --rescan soon":              `holdfast watch: --rescan "soon": want a duration, for example`,
		"watch --prefix " + strings.Repeat("k", 1024): "holdfast watch: a prefix has at most 1023 bytes",
	} {
		start(t, exec.Command(binary, append(strings.Fields(args), "-p", port)...), nil).want(t, args, 2, "", want)
	}
}
