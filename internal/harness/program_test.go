package harness

import (
	"fmt"
	"testing"
)

func TestCommandLine(t *testing.T) {
	t.Parallel()
	p, err := CommandLine("other", "other -p {port} -a {addr} -d {dir}/x", "ready")
	if err != nil {
		t.Fatal(err)
	}
	args, err := p.Args("/data", "127.0.0.1:1883")
	if got, want := fmt.Sprint(args), "[other -p 1883 -a 127.0.0.1:1883 -d /data/x]"; err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if _, err := CommandLine("other", "other", "("); err == nil {
		t.Error("a bad pattern is accepted")
	}
	if _, err := CommandLine("other", " ", "ready"); err == nil {
		t.Error("an empty command is accepted")
	}
}
