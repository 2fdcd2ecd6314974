package serve

import (
	"cmp"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/config"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// setting is one setting as a person reads it.
type setting struct {
	Name    string        `json:"name"`
	Values  []string      `json:"values"` // of one that can't be repeated: one, or none if it has no value
	From    string        `json:"from"`   // default, file, variable or flag
	At      string        `json:"at,omitempty"`
	Default string        `json:"default,omitempty"` // what the default is, in words
	source  config.Source // where it is from
	repeats bool
	help    string // what it is, without its default
	word    string // what its value is called, if it is a FILE, a URL, …
}

// all are the settings with their values in cfg, in the order of the flags' help.
func (s *settings) all(cfg server.Config) (all []setting) {
	of := newSettings(s.cfg.Version)
	of.cfg = cfg // to which its flags are bound
	s.flags.VisitAll(func(f *pflag.Flag) {
		value := f.Value
		if !s.own(f.Name) {
			value = of.flags.Lookup(f.Name).Value
		}
		one := setting{Name: f.Name}
		one.word, one.help = pflag.UnquoteUsage(f)
		one.help, one.Default = cutDefault(one.help)
		_, one.repeats = value.(pflag.SliceValue)
		one.Values = texts(value)
		s.attribute(&one)
		all = append(all, one)
	})
	listeners := setting{Name: config.ListenersKey, repeats: true, Values: []string{}}
	for _, l := range cfg.Listeners {
		listeners.Values = append(listeners.Values, l.URL.String())
	}
	s.attribute(&listeners)
	bridges := setting{Name: config.BridgesKey, repeats: true, Values: []string{}}
	for _, b := range cfg.Bridges {
		bridges.Values = append(bridges.Values, b.Name)
	}
	s.attribute(&bridges)
	return append(all, listeners, bridges)
}

// own says whether a flag sets a field of settings, and none of server.Config.
func (s *settings) own(name string) bool {
	return name == configFlag || strings.HasPrefix(name, "log-")
}

// attribute notes where a setting is from, if that was loaded.
func (s *settings) attribute(one *setting) {
	if s.loaded != nil {
		one.source = s.loaded.Sources[one.Name]
	}
	one.From, one.At = one.source.Kind.String(), one.source.At
	if one.source.Kind != config.Default {
		one.Default = ""
	}
}

var defaultInHelp = regexp.MustCompile(` \(default:? (.*)\)$`)

// cutDefault cuts what a flag's help says of its default off the help.
func cutDefault(help string) (rest, words string) {
	if m := defaultInHelp.FindStringSubmatchIndex(help); m != nil {
		return help[:m[0]], help[m[2]:m[3]]
	}
	// In one help a bound stands behind it.
	if before, after, found := strings.Cut(help, " (default "); found {
		words, after, _ = strings.Cut(after, ")")
		return before + after, words
	}
	return help, ""
}

// texts are the values of a flag as its Set takes them; none if it bounds nothing.
func texts(v pflag.Value) []string {
	if list, is := v.(pflag.SliceValue); is {
		return append([]string{}, list.GetSlice()...)
	}
	text := flags.Unwrapped(v).String()
	n, err := strconv.ParseInt(cmp.Or(text, "0"), 10, 64)
	switch v.Type() {
	case "BYTES":
		text = flags.ExactBytes(n)
		fallthrough
	case "int", "int64":
		if err == nil && (n == 0 || n == math.MaxInt) {
			return []string{}
		}
	}
	if text == "" {
		return []string{}
	}
	return []string{text}
}
