package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// span is what a flag with a number or a duration accepts. Each such flag of serve
// has one: a value outside of it is refused when the command line is read.
type span struct{ min, max int64 }

// Spans of flags that have none of their own: 0 stands for the default inside of
// the program, so it cannot be meant.
var (
	anyCount    = span{1, math.MaxInt64}
	anyDuration = span{int64(time.Millisecond), math.MaxInt64}
)

// limitFlags makes every number and duration among the flags refuse what lies
// outside of its span, and byte counts that have a span as well.
func limitFlags(f *pflag.FlagSet, own map[string]span) {
	f.VisitAll(func(flag *pflag.Flag) {
		s, given := own[flag.Name]
		if !given {
			switch flag.Value.Type() {
			case "int", "int64":
				s = anyCount
			case "duration":
				s = anyDuration
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
	span
}

// Set implements pflag.Value. A value that is refused is set all the same: the
// command does not run.
func (v limited) Set(s string) error {
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
		return errors.New("want " + v.want())
	}
	return nil
}

// want says what is accepted.
func (v limited) want() string {
	show := func(n int64) string { return strconv.FormatInt(n, 10) }
	what := "a whole number"
	switch v.Type() {
	case "duration":
		what, show = "a duration", func(n int64) string { return time.Duration(n).String() }
	case "BYTES":
		what, show = "a number of bytes", exactBytes
	}
	if v.max == math.MaxInt64 {
		return fmt.Sprintf("%s of at least %s", what, show(v.min))
	}
	return fmt.Sprintf("%s from %s to %s", what, show(v.min), show(v.max))
}

// exactBytes is a number of bytes as a flag takes it.
func exactBytes(n int64) string {
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

// explainFlag puts an error of the flags' parser into the words of all other
// errors: which flag, what it was given, what would be right.
func explainFlag(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var syntax *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &invalid):
		return fmt.Errorf("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), explainValue(invalid.GetFlag(), invalid.Unwrap()))
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

// explainValue gives our own values' errors as they are, and says what is wanted
// in place of those of package strconv.
func explainValue(f *pflag.Flag, err error) error {
	switch f.Value.Type() {
	case "BYTES", "MODE", "POLICY":
		return err
	}
	return errors.New("want " + wanted(f))
}

// wanted says what a flag takes.
func wanted(f *pflag.Flag) string {
	if l, ok := f.Value.(limited); ok {
		return l.want()
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
