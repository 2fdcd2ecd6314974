package cluster

import (
	"io"
	"strings"
	"testing"
)

// What can be no node is refused before a node is asked.
func TestAddWithABadNode(t *testing.T) {
	t.Parallel()
	for argument, want := range map[string]string{
		"d":               `"d": want NAME=HOST:PORT, with a name`,
		"=127.0.0.1:7004": `want NAME=HOST:PORT, with a name`,
		"d e=127.0.0.1:7": `want NAME=HOST:PORT, with a name`,
		"d=":              `want HOST:PORT`,
		"d=127.0.0.1":     `want HOST:PORT`,
		"d=127.0.0.1:0":   `the port "0": want 1 to 65535`,
		"d=0.0.0.0:7004":  `it names no host`,
	} {
		cmd := NewCommand()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"add", argument, "--data", t.TempDir()})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", argument, err, want)
		}
	}
}
