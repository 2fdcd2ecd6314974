package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
)

// Kind says what kind of place a setting is from. The zero value is its default.
type Kind byte

// The kinds, the weakest first.
const (
	Default Kind = iota
	File
	Variable
	Flag
)

func (k Kind) String() string {
	return [...]string{"default", "file", "variable", "flag"}[k]
}

// Source is where a setting has its value from.
type Source struct {
	Kind Kind
	At   string // FILE:LINE, HOLDFAST_NAME or --name; empty of a default
}

// Settings are what Load has read besides the values of flags.
type Settings struct {
	Listeners []listen.Config   // of the file
	Bridges   []bridge.Config   // of the file
	Sources   map[string]Source // by setting, of those that are not at their default
	Unknown   []string          // variables of the environment that are no setting's, in order
}

// Options say what Load reads.
type Options struct {
	File        string                               // flag that names the file, which the file itself can't set
	Environment []string                             // NAME=VALUE each, as os.Environ gives them
	Others      []string                             // variables with the prefix that other commands use
	Explain     func(f *pflag.Flag, err error) error // puts the error of a flag's value into words; nil: as it is
}

// settable says whether a file may set a flag.
func (o *Options) settable(f *pflag.Flag) bool { return f.Name != o.File && f.Name != "help" }

// names are the settings that a file may have, without ListenersKey and BridgesKey.
func (o *Options) names(flags *pflag.FlagSet) (names []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if o.settable(f) {
			names = append(names, f.Name)
		}
	})
	return names
}

// explain is an error of a flag's value without the words that pflag puts around it.
func (o *Options) explain(flag *pflag.Flag, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		err = invalid.Unwrap()
	}
	if o.Explain != nil {
		return o.Explain(flag, err)
	}
	return err
}

// Load sets flags, whose command line has been parsed: those that it does not give as the
// environment says, and those that neither of the two gives as the file says. What is
// replaced is not looked at.
func Load(flags *pflag.FlagSet, o Options) (*Settings, error) {
	s := &Settings{Sources: map[string]Source{}}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			s.Sources[f.Name] = Source{Flag, "--" + f.Name}
		}
	})
	if err := s.environment(flags, o); err != nil {
		return nil, err
	}
	if file := flags.Lookup(o.File); file != nil && file.Value.String() != "" {
		if err := s.file(file.Value.String(), flags, o); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Prefix is how the variables of settings begin.
const Prefix = "HOLDFAST_"

// VariableOf is the variable of the environment that sets a flag.
func VariableOf(flag string) string {
	return Prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// kubernetes are variables that Kubernetes sets in each container for a service of the same
// namespace whose name begins with holdfast: HOLDFAST_SERVICE_HOST, HOLDFAST_PORT,
// HOLDFAST_METRICS_PORT_9090_TCP_ADDR.
var kubernetes = regexp.MustCompile(`^HOLDFAST_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// environment sets flags from the variables of the environment. A variable that is nearly a
// setting's is refused: the setting that was meant may be what protects the server. Any
// other that is not known is noted.
func (s *Settings) environment(flags *pflag.FlagSet, o Options) error {
	settings := map[string]*pflag.Flag{}
	var variables []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			settings[VariableOf(f.Name)] = f
			variables = append(variables, VariableOf(f.Name))
		}
	})
	for _, pair := range slices.Sorted(slices.Values(o.Environment)) {
		name, value, _ := strings.Cut(pair, "=")
		flag := settings[name]
		switch {
		case !strings.HasPrefix(name, Prefix):
			continue
		case flag == nil && (slices.Contains(o.Others, name) || kubernetes.MatchString(name)):
			continue
		case flag == nil:
			// Of a short name a few letters are most of it.
			if meant := near(name, variables, min(farthest, (len(name)-len(Prefix))/3)); meant != "" {
				return fmt.Errorf("%s: unknown variable; did you mean %s?", name, meant)
			}
			s.Unknown = append(s.Unknown, name)
			continue
		case value == "" || s.Sources[flag.Name].Kind == Flag:
			continue
		}
		if err := setFromVariable(flags, flag, name, value, o); err != nil {
			return err
		}
		s.Sources[flag.Name] = Source{Variable, name}
	}
	return nil
}

// setFromVariable sets a flag; one that may be repeated from a list with commas.
func setFromVariable(flags *pflag.FlagSet, flag *pflag.Flag, name, value string, o Options) error {
	values := []string{value}
	if repeats(flag) {
		values = strings.Split(value, ",")
	}
	for _, v := range values {
		if repeats(flag) {
			if v = strings.TrimSpace(v); v == "" {
				return fmt.Errorf("%s %q: a value in the list is empty: want values with commas between them", name, value)
			}
		}
		if err := flags.Set(flag.Name, v); err != nil {
			return fmt.Errorf("%s %q: %w", name, v, o.explain(flag, err))
		}
	}
	return nil
}

// Name is what an error calls a setting: the flag or the variable that has set it, or its
// line in the file.
func (s *Settings) Name(setting string) string {
	switch source := s.Sources[setting]; source.Kind {
	case File:
		return source.At + ": " + setting
	case Variable:
		return source.At
	}
	return "--" + setting
}

var flagName = regexp.MustCompile(`^--([a-z0-9-]+)`)

// Place puts where a setting is from in front of an error that begins with its flag, if it
// is not from the command line.
func (s *Settings) Place(err error) error {
	if err == nil {
		return nil
	}
	if m := flagName.FindStringSubmatch(err.Error()); m != nil {
		if source := s.Sources[m[1]]; source.Kind == File || source.Kind == Variable {
			return fmt.Errorf("%s: %w", source.At, err)
		}
	}
	return err
}
