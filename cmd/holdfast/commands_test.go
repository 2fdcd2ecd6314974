package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestFlagsAreThoseOfStatestoreCLI(t *testing.T) {
	t.Parallel()
	root := newRootCommand()
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
	check(newRootCommand())
}
