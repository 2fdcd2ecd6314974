package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/config"
	"github.com/holdfast-mqtt/holdfast/internal/secrets"
)

// NewConfigCommand makes the command config.
func NewConfigCommand() *cobra.Command {
	set := newSettings("")
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the settings that serve would have, and where each is from",
		Long: `Print the settings that "holdfast serve" would have with the same flags, in the
same environment, on this machine: each with its value and where that is from, a
flag, a variable of the environment, a line of the configuration file, or the
default. What is wrong with them is said as serve says it. No server is started,
and nothing is opened but the configuration.

A value of - means that the setting has none. What follows from the free space of
the disk is not known before the start. The values of headers, and what follows the
host in the webhook's URL, are not shown.`,
		Example: `  holdfast config
  holdfast config --config site/holdfast.yaml --max-connections 5000
  holdfast config reference >holdfast.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return flags.UnknownCommand(cmd, args)
			}
			if err := set.load(os.Environ()); err != nil {
				return err
			}
			for _, name := range set.loaded.Unknown {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: the variable %s sets nothing: no setting has its name\n", cmd.CommandPath(), name)
			}
			all := withoutSecrets(set.all(set.cfg.OnThisMachine()))
			if asJSON {
				return printJSON(cmd.OutOrStdout(), all)
			}
			return printTable(cmd.OutOrStdout(), all)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object for each setting, in a line of its own")
	cmd.Flags().AddFlagSet(set.flags)
	cmd.AddCommand(newReferenceCommand())
	return cmd
}

func newReferenceCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "reference",
		Short: "Print a configuration file with all settings, each commented out",
		Long: `Print a configuration file in which each setting stands commented out, with what it
means, its variable of the environment, and its default.`,
		Example: "  holdfast config reference >holdfast.yaml",
		Args:    flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), reference())
			return err
		},
	}
}

// withoutSecrets hides what may be secret in values that the command line or the file has.
func withoutSecrets(all []setting) []setting {
	for i := range all {
		one := &all[i]
		hide := map[string]func(string) string{"otlp-header": secrets.Header, "webhook": secrets.Host}[one.Name]
		for n := range one.Values {
			if hide != nil {
				one.Values[n] = hide(one.Values[n])
			}
		}
	}
	return all
}

func printJSON(out io.Writer, all []setting) error {
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	for _, one := range all {
		if err := lines.Encode(one); err != nil {
			return err
		}
	}
	return nil
}

func printTable(out io.Writer, all []setting) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, one := range all {
		value := strings.Join(one.Values, " ")
		if value == "" {
			value = "-"
		}
		from := one.At
		if one.source.Kind == config.Default {
			from = "default"
			if one.Default != "" && one.Default != value {
				from += ": " + one.Default
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", one.Name, value, from)
	}
	return table.Flush()
}

// CheckFile says why a server would not take a configuration file, whatever the environment says.
func CheckFile(path string) error {
	set := newSettings("")
	if err := set.flags.Set(configFlag, path); err != nil {
		return err
	}
	return set.load(nil)
}
