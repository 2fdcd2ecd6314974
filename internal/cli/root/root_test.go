package root

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestFlagsAreThoseOfStatestoreCLI(t *testing.T) {
	t.Parallel()
	root := New("")
	for flag, commands := range map[string]string{
		"hostname n": "get set del vdel watch scan", "port p": "get set del vdel watch scan", "notls ": "get set del vdel watch scan",
		"cafile T": "get set del vdel watch scan", "certfile C": "get set del vdel watch scan", "keyfile K": "get set del vdel watch scan",
		"key k": "get set del vdel watch", "value ": "set vdel", "valuefile f": "get set vdel",
	} {
		long, short, _ := strings.Cut(flag, " ")
		for _, name := range strings.Fields(commands) {
			cmd, _, err := root.Find([]string{name})
			if err != nil {
				t.Fatal(err)
			}
			if f := cmd.Flags().Lookup(long); f == nil || f.Shorthand != short {
				t.Errorf("%s: --%s, -%s: %+v", name, long, short, f)
			}
		}
	}
}

// Every command says what it is for, and how.
func TestHelp(t *testing.T) {
	t.Parallel()
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Short == "" {
			t.Errorf("%s has no description", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(New(""))
}

// Numbers and durations are in decimal digits, in every flag of every command: the parser of
// flags would take 010 for eight.
func TestNumbersAreDecimal(t *testing.T) {
	t.Parallel()
	numbers := 0
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			var refused []string
			switch f.Value.Type() {
			case "bool", "string", "stringArray", "stringSlice", "float64", "FORMAT":
				return
			case "int", "int64", "uint", "uint16", "uint32", "uint64", "BYTES":
				refused = []string{"010", "0x10", "1_0", "+10"}
			case "duration":
				refused = []string{"010s", ".5s", "+10s"}
			default:
				if f.Value.Set("010") == nil {
					t.Errorf("%s --%s, a %s, takes 010", cmd.CommandPath(), f.Name, f.Value.Type())
				}
				return
			}
			numbers++
			for _, text := range refused {
				if f.Value.Set(text) == nil {
					t.Errorf("%s --%s takes %s for %s", cmd.CommandPath(), f.Name, text, f.Value)
				}
			}
		})
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(New(""))
	if numbers < 100 {
		t.Errorf("%d flags are numbers, there are more", numbers)
	}
}

func TestVersionNamesCommitAndDate(t *testing.T) {
	t.Parallel()
	noted := func(pairs ...string) *debug.BuildInfo {
		info := &debug.BuildInfo{}
		for i := 0; i < len(pairs); i += 2 {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return info
	}
	for _, test := range []struct {
		info *debug.BuildInfo
		want string
	}{
		{nil, ""},
		{noted("GOOS", "linux"), ""},
		{noted("vcs.revision", "5fd33fe", "vcs.time", "2026-11-22T20:00:00Z", "vcs.modified", "false"), " commit 5fd33fe 2026-11-22T20:00:00Z"},
		{noted("vcs.revision", "5fd33fe", "vcs.time", "2026-11-22T20:00:00Z", "vcs.modified", "true"), " commit 5fd33fe 2026-11-22T20:00:00Z modified"},
	} {
		if got := source(test.info); got != test.want {
			t.Errorf("%+v: %q, want %q", test.info, got, test.want)
		}
	}
}
