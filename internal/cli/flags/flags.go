// Package flags is what the commands' flags have in common: numbers with bounds,
// numbers of bytes, variables of the environment that take the place of flags, and
// errors that say which flag, what it was given, and what would be right. It knows no
// flag by its name.
package flags

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// Span is what a flag with a number or a duration accepts. Each such flag of serve
// has one: a value outside of it is refused when the command line is read.
type Span struct{ min, max int64 }

// Between is the span from min to max, both included.
func Between(min, max int64) Span { return Span{min, max} }

// Spans of flags that have none of their own. 0 stands for the default inside of the
// program, so it is no valid value. The upper ends leave room for sums of two bounds, on
// 32 bits as well, and for the time after such a duration.
var (
	anyCount    = Span{1, 1_000_000_000}
	anyDuration = Span{int64(time.Millisecond), int64(100 * 365 * 24 * time.Hour)}
	anyBytes    = Span{1, 1 << 50}
)

// Limit makes every number, duration and number of bytes among the flags refuse what lies
// outside of its span, and every number that is not in plain decimal digits.
func Limit(f *pflag.FlagSet, own map[string]Span) {
	f.VisitAll(func(flag *pflag.Flag) {
		s, given := own[flag.Name]
		if !given {
			switch flag.Value.Type() {
			case "int", "int64":
				s = anyCount
			case "duration":
				s = anyDuration
			case "BYTES":
				s = anyBytes
			default:
				return
			}
		}
		flag.Value = limited{flag.Value, s}
		if flag.DefValue == "0s" {
			flag.DefValue = "" // its help says what the default is
		}
	})
}

// limited is a flag's value that must lie in a span.
type limited struct {
	pflag.Value
	Span
}

// Set implements pflag.Value. A value that is refused is set all the same: the
// command does not run.
func (v limited) Set(s string) error {
	if !isPlain(v.Type(), s) {
		return errors.New("want " + v.Want())
	}
	if err := v.Value.Set(s); err != nil {
		return err
	}
	n, err := strconv.ParseInt(v.Value.String(), 10, 64)
	if v.Type() == "duration" {
		var d time.Duration
		d, err = time.ParseDuration(v.Value.String())
		n = int64(d)
	}
	if err != nil || n < v.min || n > v.max {
		return errors.New("want " + v.Want())
	}
	return nil
}

// isPlain says whether the text of a number or a duration is in decimal digits. The parser of flags
// takes a number that begins with a zero for an octal one.
func isPlain(valueType, text string) bool {
	switch valueType {
	case "int", "int64", "uint16", "uint64":
		return units.IsDecimal(strings.TrimPrefix(text, "-"))
	case "duration":
		_, err := units.ParseDuration(text)
		return err == nil
	}
	return true
}

// PlainNumbers makes every number and duration among the flags of a command, and of those below
// it, refuse what is not in decimal digits, as Limit does.
func PlainNumbers(cmd *cobra.Command) {
	for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
		set.VisitAll(func(flag *pflag.Flag) {
			switch flag.Value.(type) {
			case limited, plain:
				return
			}
			switch flag.Value.Type() {
			case "int", "int64", "uint16", "uint64", "duration":
				flag.Value = plain{flag.Value}
			}
		})
	}
	for _, sub := range cmd.Commands() {
		PlainNumbers(sub)
	}
}

// plain is a flag's value that must be in decimal digits if it is a number or a duration.
type plain struct{ pflag.Value }

// Set implements pflag.Value.
func (v plain) Set(s string) error {
	if !isPlain(v.Type(), s) {
		return errors.New("not in decimal digits") // ExplainValue says what is wanted
	}
	return v.Value.Set(s)
}

// Want says what is accepted.
func (v limited) Want() string {
	show := func(n int64) string { return strconv.FormatInt(n, 10) }
	what, form := "a whole number", ""
	switch v.Type() {
	case "duration":
		what, form, show = "a duration", ", for example 500ms, 10s or 2h", func(n int64) string { return time.Duration(n).String() }
	case "BYTES":
		what, form, show = "a number of bytes", ", for example 65536, 64KiB or 1.5GiB", ExactBytes
	}
	return fmt.Sprintf("%s from %s to %s%s", what, show(v.min), show(v.max), form)
}

// Unwrapped is a flag's value without the span that Limit has put around it.
func Unwrapped(v pflag.Value) pflag.Value {
	if l, is := v.(limited); is {
		return l.Value
	}
	return v
}

// ExactBytes is a number of bytes as a flag takes it.
func ExactBytes(n int64) string {
	for _, unit := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n%unit.bytes == 0 && n > 0 {
			return strconv.FormatInt(n/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// NoteVariables has the help of flags say which variables of the environment take
// their place.
func NoteVariables(f *pflag.FlagSet, variables map[string]string) {
	for name, variable := range variables {
		flag := f.Lookup(name)
		flag.Usage += " [" + variable + "]"
	}
}

// TakeVariables sets the flags that were not given from the environment, and says for
// which of them it had a variable. One that is empty counts as not set, except where a
// password may be empty.
func TakeVariables(cmd *cobra.Command, variables map[string]string) (taken map[string]string, err error) {
	taken = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		variable := variables[name]
		value, set := os.LookupEnv(variable)
		if !set || value == "" && name != "password" || cmd.Flags().Changed(name) || cmd.Root().Flags().Changed(name) {
			continue
		}
		flag := cmd.Flags().Lookup(name)
		if err := flag.Value.Set(value); err != nil {
			return nil, fmt.Errorf("%s %q: %w", variable, value, ExplainValue(flag, err))
		}
		flag.Changed = true
		taken[name] = variable
	}
	return taken, nil
}

// Explain makes an error of the flags' parser read like all other errors: which flag,
// what it was given, what would be right.
func Explain(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var syntax *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &invalid):
		return fmt.Errorf("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), ExplainValue(invalid.GetFlag(), invalid.Unwrap()))
	case errors.As(err, &missing):
		return fmt.Errorf("--%s needs a value: want %s", missing.GetFlag().Name, wanted(missing.GetFlag()))
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		return fmt.Errorf("unknown flag -%s; see %s --help", unknown.GetSpecifiedName(), cmd.CommandPath())
	case errors.As(err, &unknown):
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		return fmt.Errorf("unknown flag --%s%s; see %s --help", unknown.GetSpecifiedName(), meant("--", unknown.GetSpecifiedName(), names), cmd.CommandPath())
	case errors.As(err, &syntax):
		return fmt.Errorf("%s is not a flag: want --NAME, --NAME=VALUE or -LETTER; see %s --help", syntax.GetSpecifiedFlag(), cmd.CommandPath())
	}
	return err
}

// Wanter is a flag's value that says what it accepts, in the words that follow "want".
type Wanter interface{ Want() string }

// ExplainValue returns the errors of this program's values as they are, and replaces
// those of package strconv by what is wanted.
func ExplainValue(f *pflag.Flag, err error) error {
	switch f.Value.Type() {
	case "BYTES", "MODE", "POLICY", "ENCODING", "QOS", "FORMAT":
		return err
	}
	return errors.New("want " + wanted(f))
}

// wanted says what a flag takes.
func wanted(f *pflag.Flag) string {
	if v, ok := f.Value.(Wanter); ok {
		return v.Want()
	}
	switch f.Value.Type() {
	case "bool":
		return "true or false"
	case "duration":
		return "a duration, for example 500ms, 10s or 2h"
	case "uint16":
		return "a whole number from 0 to 65535"
	case "uint64":
		return "a whole number that is not negative"
	case "BYTES":
		return "a number of bytes, for example 65536, 64KiB or 1.5GiB"
	}
	name, _ := pflag.UnquoteUsage(f)
	return "a " + strings.ToUpper(name)
}

// meant is "; did you mean …?", or nothing if no name is near.
func meant(prefix, typed string, names []string) string {
	// Cobra judges what is near, but among commands only.
	c := &cobra.Command{SuggestionsMinimumDistance: nearEnough}
	for _, name := range names {
		c.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	near := c.SuggestionsFor(typed)
	if len(near) == 0 {
		return ""
	}
	for i := range near {
		near[i] = prefix + near[i]
	}
	return fmt.Sprintf("; did you mean %s?", strings.Join(near, " or "))
}

// nearEnough is how many letters may be wrong, missing or too many in a name.
const nearEnough = 2

// UnknownCommand is what a command does that only has subcommands: it prints its help,
// or says that there is no subcommand of the name that was given.
func UnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, append(c.Aliases, c.Name())...)
	}
	return fmt.Errorf("unknown command %q%s; see %s --help", args[0], meant("", args[0], names), cmd.CommandPath())
}

// Args is for a command that needs exactly these arguments. what names each for an error,
// for example "backup directory".
func Args(what ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(what) {
			return fmt.Errorf("no %s is given; usage: %s", what[len(args)], cmd.UseLine())
		}
		return NothingLeft(cmd, args[len(what):])
	}
}

// AtMost is for a command that takes up to so many arguments.
func AtMost(most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		return NothingLeft(cmd, args[min(most, len(args)):])
	}
}

// NothingLeft refuses arguments for which a command has no use.
func NothingLeft(cmd *cobra.Command, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q; usage: %s", rest[0], cmd.UseLine())
	}
	return nil
}
