package policycmd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/policy"
)

// run runs `holdfast policy` with arguments.
func run(args ...string) (out, errOut string, err error) {
	var o, e strings.Builder
	cmd := NewCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetOut(&o)
	cmd.SetErr(&e)
	err = cmd.Execute()
	return o.String(), e.String(), err
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// blocks gives the fenced blocks of a kind in docs/policy.md.
func blocks(t *testing.T, kind string) (blocks []string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(page), "```"+kind+"\n") {
		if i > 0 {
			block, _, _ := strings.Cut(part, "```")
			blocks = append(blocks, block)
		}
	}
	if len(blocks) == 0 {
		t.Fatalf("docs/policy.md has no blocks of %s", kind)
	}
	return blocks
}

// The commands in docs/policy.md print what it says, for the policy in it.
func TestExamplesOfTheDocumentation(t *testing.T) {
	t.Parallel()
	file := write(t, "policy.yaml", blocks(t, "yaml")[0])
	for _, block := range blocks(t, "console") {
		for _, part := range strings.Split("\n"+block, "\n$ holdfast policy ")[1:] {
			line, want, _ := strings.Cut(part, "\n")
			out, errOut, err := run(strings.Fields(strings.ReplaceAll(line, "policy.yaml", file))...)
			var no exit.Negative
			if err != nil && !errors.As(err, &no) || errOut != "" {
				t.Errorf("%s: %v %s", line, err, errOut)
			}
			if out = strings.ReplaceAll(out, file, "policy.yaml"); strings.TrimSpace(out) != strings.TrimSpace(want) {
				t.Errorf("%s: got\n%s\nwant\n%s", line, out, want)
			}
		}
	}
}

// The page names each bound that there is.
func TestTheDocumentationNamesTheBounds(t *testing.T) {
	t.Parallel()
	if policy.MaxFileBytes != 8<<20 {
		t.Error("docs/policy.md says 8 MiB")
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	bad := write(t, "bad.yaml", "rules:\n- brokerResources: [{method: Conect}]\n- {}\n")
	out, _, err := run("check", bad)
	var no exit.Negative
	want := bad + ":2: unknown method \"Conect\"; want Connect, Publish or Subscribe\n" + bad + ":3: this rule allows nothing; add brokerResources or stateStoreResources\n"
	if out != want || !errors.As(err, &no) || err.Error() != "2 problems" {
		t.Errorf("got %q, %v; want %q", out, err, want)
	}

	odd := write(t, "odd.yaml", "rules: [{brokerResources: [{method: Publish, topics: ['a/*']}]}]")
	out, _, err = run("check", odd)
	if err != nil || !strings.Contains(out, "warning: "+odd+":1: \"a/*\": * is not a wildcard") || !strings.HasSuffix(out, odd+": 1 rule, 0 groups\n") {
		t.Errorf("got %q, %v", out, err)
	}
	if _, _, err := run("check", filepath.Join(t.TempDir(), "none")); err == nil || errors.As(err, &no) {
		t.Errorf("a missing file: got %v", err)
	}
}

func TestExplainRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	file := write(t, "policy.yaml", blocks(t, "yaml")[0])
	for _, c := range []struct{ args, want string }{
		{"FILE --client a", "nothing asked"},
		{"FILE --topic t", "no client given"},
		{"--client a --topic t", "no policy file given"},
		{"FILE --policy FILE --client a --topic t", "given twice"},
		{"FILE --client a --topic t --read", "need --key"},
		{"FILE --client a --key t --publish", "need --topic"},
		{"FILE --client a --attribute x --key t", `--attribute "x": want NAME=VALUE`},
	} {
		_, _, err := run(append([]string{"explain"}, strings.Fields(strings.ReplaceAll(c.args, "FILE", file))...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.args, err, c.want)
		}
	}
	out, _, err := run("explain", "--policy", file, "--username", "olga", "--connect", "--topic", "orders/1", "--key", "k", "--read")
	if err != nil || strings.Count(out, "allowed: ") != 4 {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestImportMosquitto(t *testing.T) {
	t.Parallel()
	acl := write(t, "acl", "user a\ntopic read x/#\n")
	out, errOut, err := run("import-mosquitto", acl)
	if err != nil || errOut != "" {
		t.Errorf("got %v %s", err, errOut)
	}
	if checked, _, err := run("check", write(t, "policy.yaml", out)); err != nil {
		t.Errorf("the policy is wrong: %s", checked)
	}
	acl = write(t, "acl", "user a\ntopic read x/#\ntopic deny x/y\n")
	out, errOut, err = run("import-mosquitto", acl)
	var no exit.Negative
	if !errors.As(err, &no) || !strings.HasPrefix(errOut, acl+`:3: deny "x/y" cannot be converted`) || !strings.Contains(out, `"x/#"`) {
		t.Errorf("got %v %s", err, errOut)
	}
}
