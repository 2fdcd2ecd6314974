package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/holdfast-mqtt/holdfast/internal/units"
	"github.com/holdfast-mqtt/holdfast/internal/yamlfault"
)

// maxFile bounds the file, in bytes.
const maxFile = 1 << 20

// ListenersKey and BridgesKey are the names in the file that are not flags'.
const (
	ListenersKey = "listeners"
	BridgesKey   = "bridges"
)

// file reads a file into the settings.
func (s *Settings) file(name string, flags *pflag.FlagSet, o Options) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("the configuration: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return fmt.Errorf("the configuration %s is a directory: name the file in it", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return fmt.Errorf("the configuration %s: %w", name, err)
	}
	if len(text) > maxFile {
		return fmt.Errorf("%s: it has more than %d KiB, and no configuration has", name, maxFile>>10)
	}
	return s.parse(name, text, flags, o)
}

// parse is file for the text of one.
func (s *Settings) parse(name string, text []byte, flags *pflag.FlagSet, o Options) error {
	r := &reader{name: name, flags: flags, options: o, into: s}
	var document yaml.Node
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil // nothing but comments
	case err != nil:
		return r.syntax(err, text)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: a second document begins after ---: leave one", name)
	}
	return r.file(document.Content[0])
}

// reader reads one file.
type reader struct {
	name    string
	flags   *pflag.FlagSet
	options Options
	into    *Settings
}

// at is an error about a place in the file.
func (r *reader) at(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", r.name, n.Line, fmt.Errorf(format, args...))
}

// syntax puts the place in front of an error of the YAML decoder.
func (r *reader) syntax(err error, content []byte) error {
	line, text := yamlfault.Explain(err, content)
	if line > 0 {
		return fmt.Errorf("%s:%d: this is not YAML: %s", r.name, line, text)
	}
	return fmt.Errorf("%s: this is not YAML: %s", r.name, text)
}

func (r *reader) file(top *yaml.Node) error {
	return r.mapping(top, "the configuration", func(key, value *yaml.Node) (err error) {
		switch key.Value {
		case ListenersKey:
			r.into.Listeners, err = r.listeners(value)
		case BridgesKey:
			r.into.Bridges, err = r.bridges(value)
		default:
			return r.setting(key, value)
		}
		r.into.Sources[key.Value] = r.source(key)
		return err
	})
}

func (r *reader) source(key *yaml.Node) Source {
	return Source{File, fmt.Sprintf("%s:%d", r.name, key.Line)}
}

// mapping calls f for each pair of a mapping, in which no key may occur twice.
func (r *reader) mapping(n *yaml.Node, what string, f func(key, value *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return r.at(n, "%s must be settings of the form NAME: VALUE", what)
	}
	seen := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			return r.at(key, "a setting's name must be plain text")
		}
		if line, is := seen[key.Value]; is {
			return r.at(key, "%s is set in line %d already: leave one of them", key.Value, line)
		}
		seen[key.Value] = key.Line
		if err := f(key, value); err != nil {
			return err
		}
	}
	return nil
}

// setting sets a flag, unless the command line or a variable of the environment has.
func (r *reader) setting(key, value *yaml.Node) error {
	flag := r.flags.Lookup(key.Value)
	if flag == nil || !r.options.settable(flag) {
		return r.at(key, "unknown setting %s%s; holdfast serve --help lists them, without their --", key.Value, meant(near(key.Value, append(r.options.names(r.flags), ListenersKey, BridgesKey), farthest)))
	}
	values, err := r.values(flag, key, value)
	if err != nil {
		return err
	}
	if _, given := r.into.Sources[flag.Name]; given {
		return nil // what is replaced is not looked at
	}
	for _, v := range values {
		if err := r.flags.Set(flag.Name, v); err != nil {
			return r.at(value, "%s: %q: %w", key.Value, v, r.options.explain(flag, err))
		}
	}
	r.into.Sources[flag.Name] = r.source(key)
	return nil
}

// values are what the file says of a flag: several only of one that may be repeated.
func (r *reader) values(flag *pflag.Flag, key, value *yaml.Node) (values []string, err error) {
	switch {
	case value.Kind == yaml.SequenceNode && repeats(flag):
		for _, n := range value.Content {
			v, err := r.scalar(n, key.Value)
			if err != nil {
				return nil, err
			}
			values = append(values, r.path(flag, v))
		}
		if len(values) == 0 {
			return nil, r.at(value, "%s is an empty list: name something, or leave the setting out", key.Value)
		}
		return values, nil
	case value.Kind == yaml.SequenceNode:
		return nil, r.at(value, "%s has one value, not a list", key.Value)
	case value.Kind == yaml.MappingNode && isMapping(flag):
		err := r.mapping(value, key.Value, func(name, of *yaml.Node) error {
			v, err := r.scalar(of, name.Value)
			values = append(values, name.Value+"="+v)
			return err
		})
		return values, err
	}
	v, err := r.scalar(value, key.Value)
	return []string{r.path(flag, v)}, err
}

// repeats says whether a flag may be given several times.
func repeats(flag *pflag.Flag) bool {
	_, is := flag.Value.(pflag.SliceValue)
	return is
}

// isMapping says whether the values of a flag are NAME=VALUE, which the file may have as a
// mapping.
func isMapping(flag *pflag.Flag) bool {
	_, is := flag.Value.(interface{ Mapping() })
	return is
}

// scalar is a value that is no list and no mapping.
func (r *reader) scalar(n *yaml.Node, name string) (string, error) {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return "", r.at(n, "%s: anchors and aliases are not supported: write the value out", name)
	case n.Kind != yaml.ScalarNode:
		return "", r.at(n, "%s: want a value, not settings", name)
	case n.Style&yaml.TaggedStyle != 0:
		return "", r.at(n, "%s: tags such as %s are not supported: leave it out", name, n.ShortTag())
	case n.Tag == "!!null":
		return "", r.at(n, "%s has no value: give one, or leave the setting out", name)
	}
	return n.Value, nil
}

// count is the value of a setting that is a number from 1 to most.
func (r *reader) count(key, value *yaml.Node, text string, most int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || !units.IsDecimal(text) || n < 1 || n > most {
		return 0, r.at(value, "%s: %q: want a whole number from 1 to %d", key.Value, text, most)
	}
	return n, nil
}

// path makes the name of a file, which a flag's help calls FILE or DIR, relative to the
// configuration.
func (r *reader) path(flag *pflag.Flag, value string) string {
	if name, _ := pflag.UnquoteUsage(flag); name != "FILE" && name != "DIR" {
		return value
	}
	return r.relative(value)
}

func (r *reader) relative(name string) string {
	if name == "" || name == "-" || filepath.IsAbs(name) { // - is standard output
		return name
	}
	return filepath.Join(filepath.Dir(r.name), name)
}

// farthest is how many letters may be wrong in a name that is near another one.
const farthest = 2

// near gives the name that was probably meant, with at most so many letters wrong, or
// nothing.
func near(typed string, names []string, most int) (best string) {
	least := most + 1
	for _, name := range names {
		if d := distance(typed, name); d < least {
			best, least = name, d
		}
	}
	return best
}

// meant is "; did you mean …?", or nothing if no name is near.
func meant(name string) string {
	if name == "" {
		return ""
	}
	return "; did you mean " + name + "?"
}

// distance is how many letters must be changed, added or taken away (Levenshtein). For a
// name that is too long to be a mistyped setting it is longest, without a look at it.
func distance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, before+1, row[j]+1)
		}
	}
	return row[len(b)]
}
