package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/holdfast-mqtt/holdfast/internal/listen"
)

// maxFile bounds the file, in bytes.
const maxFile = 1 << 20

// listenersKey is the only name in the file that is not a flag's.
const listenersKey = "listeners"

// Options say how a file is read.
type Options struct {
	Except  []string                             // flags that a file can't set
	Explain func(f *pflag.Flag, err error) error // puts the error of a flag's value into words; nil: as it is
}

// Read sets flags as the file says, and gives its listeners. Flags that were given on the
// command line stay as they are: the file must not say something else.
func Read(name string, flags *pflag.FlagSet, o Options) ([]listen.Config, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("the configuration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("the configuration %s: %w", name, err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: it has more than %d KiB, and no configuration has", name, maxFile>>10)
	}
	return Parse(name, text, flags, o)
}

// Parse is Read of a file's text.
func Parse(name string, text []byte, flags *pflag.FlagSet, o Options) ([]listen.Config, error) {
	r := &reader{name: name, flags: flags, options: o}
	var document yaml.Node
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, nil // nothing but comments
	case err != nil:
		return nil, r.syntax(err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: a second document begins after ---: leave one", name)
	}
	return r.file(document.Content[0])
}

// reader reads one file.
type reader struct {
	name    string
	flags   *pflag.FlagSet
	options Options
}

// at is an error about a place in the file.
func (r *reader) at(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", r.name, n.Line, fmt.Errorf(format, args...))
}

// syntax puts the place in front of an error of the YAML decoder, which says "yaml: line
// 3: …".
func (r *reader) syntax(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	var line int
	if n, _ := fmt.Sscanf(text, "line %d:", &line); n == 1 {
		_, text, _ = strings.Cut(text, ": ")
		return fmt.Errorf("%s:%d: this is not YAML: %s", r.name, line, text)
	}
	return fmt.Errorf("%s: this is not YAML: %s", r.name, text)
}

func (r *reader) file(top *yaml.Node) (listeners []listen.Config, err error) {
	err = r.mapping(top, "the configuration", func(key, value *yaml.Node) error {
		if key.Value == listenersKey {
			listeners, err = r.listeners(value)
			return err
		}
		return r.setting(key, value)
	})
	return listeners, err
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

// setting sets a flag.
func (r *reader) setting(key, value *yaml.Node) error {
	flag := r.flags.Lookup(key.Value)
	if flag == nil || slices.Contains(r.options.Except, key.Value) || key.Value == "help" {
		return r.at(key, "unknown setting %s%s; holdfast serve --help lists them, without their --", key.Value, r.near(key.Value))
	}
	values, err := r.values(flag, key, value)
	if err != nil {
		return err
	}
	if flag.Changed {
		return r.compare(flag, key, value, values)
	}
	for i, v := range values {
		if err := r.flags.Set(flag.Name, v); err != nil {
			return r.at(value, "%s: %q: %w", key.Value, values[i], r.explain(flag, err))
		}
	}
	return nil
}

// explain is an error of a flag's value without the words that pflag puts around it.
func (r *reader) explain(flag *pflag.Flag, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		err = invalid.Unwrap()
	}
	if r.options.Explain != nil {
		return r.options.Explain(flag, err)
	}
	return err
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
	}
	v, err := r.scalar(value, key.Value)
	return []string{r.path(flag, v)}, err
}

// repeats says whether a flag may be given several times.
func repeats(flag *pflag.Flag) bool {
	_, is := flag.Value.(pflag.SliceValue)
	return is
}

// scalar is a value that is no list and no mapping.
func (r *reader) scalar(n *yaml.Node, name string) (string, error) {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return "", r.at(n, "%s: anchors and aliases are not supported: write the value out", name)
	case n.Kind != yaml.ScalarNode:
		return "", r.at(n, "%s: want a value, not settings", name)
	case n.Tag == "!!null":
		return "", r.at(n, "%s has no value: give one, or leave the setting out", name)
	}
	return n.Value, nil
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

// compare refuses a value that is not the one of the command line.
func (r *reader) compare(flag *pflag.Flag, key, value *yaml.Node, values []string) error {
	given := flag.Value.String()
	var same bool
	if list, is := flag.Value.(pflag.SliceValue); is {
		same = slices.Equal(list.GetSlice(), values)
	} else {
		if err := flag.Value.Set(values[0]); err != nil {
			return r.at(value, "%s: %q: %w", key.Value, values[0], r.explain(flag, err))
		}
		same = flag.Value.String() == given
	}
	if !same {
		return r.at(key, "%s is %s here, and %s on the command line: leave one of them", key.Value, strings.Join(values, ", "), given)
	}
	return nil
}

// near is "; did you mean …?", or nothing if no name is near.
func (r *reader) near(typed string) string {
	best, least := "", 3 // letters that may be wrong
	try := func(name string) {
		if d := distance(typed, name); d < least {
			best, least = name, d
		}
	}
	try(listenersKey)
	r.flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(r.options.Except, f.Name) {
			try(f.Name)
		}
	})
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is how many letters must be changed, added or taken away (Levenshtein); for
// long names, which are no one's mistake, only that it is many.
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
