package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-mqtt/holdfast/internal/yamlfault"
)

// Problem is what is wrong on one line of a file.
type Problem struct {
	Line int // from 1 on; 0: of the file as a whole
	Text string
}

// Problems are what is wrong with a file, in the order of its lines.
type Problems struct {
	File string
	List []Problem // never empty
}

// Error gives each problem on a line of its own, as FILE:LINE: text.
func (p *Problems) Error() string {
	var b strings.Builder
	for i, one := range p.List {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(one.In(p.File))
	}
	return b.String()
}

// In is the problem with its file.
func (p Problem) In(file string) string {
	if p.Line == 0 {
		return file + ": " + p.Text
	}
	return file + ":" + strconv.Itoa(p.Line) + ": " + p.Text
}

// maxProblems is how many problems are told at once.
const maxProblems = 20

// checker collects problems. Its methods that read a node report what is wrong with it,
// and return the zero value then.
type checker struct {
	problems []Problem
	warnings []Problem
	entries  int // items of lists so far
}

func (c *checker) fail(line int, format string, args ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, Problem{line, fmt.Sprintf(format, args...)})
	}
}

func (c *checker) warn(line int, format string, args ...any) {
	if len(c.warnings) < maxProblems {
		c.warnings = append(c.warnings, Problem{line, fmt.Sprintf(format, args...)})
	}
}

// result gives what is wrong, if anything is.
func (c *checker) result(file string) error {
	sortByLine(c.warnings)
	if len(c.problems) == 0 {
		return nil
	}
	sortByLine(c.problems)
	return &Problems{File: file, List: c.problems}
}

func sortByLine(all []Problem) {
	sort.SliceStable(all, func(i, j int) bool { return all[i].Line < all[j].Line })
}

// document reads the only document of a file.
func (c *checker) document(content []byte) *yaml.Node {
	var root, second yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(content))
	switch err := d.Decode(&root); {
	case errors.Is(err, io.EOF):
		c.fail(0, "the file is empty; it needs rules:, a list")
		return nil
	case err != nil:
		line, text := yamlfault.Explain(err, content)
		c.fail(line, "this is not YAML: %s", text)
		return nil
	}
	switch err := d.Decode(&second); {
	case err == nil:
		line := second.Line
		if len(second.Content) > 0 {
			line = second.Content[0].Line
		}
		c.fail(line, "a second document begins here; a policy file has one")
		return nil
	case !errors.Is(err, io.EOF):
		c.fail(0, "this is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return nil
	}
	if !c.plain(root.Content[0], 0) {
		return nil
	}
	return root.Content[0]
}

// maxDepth is how deep lists and maps may be nested; the format needs 8.
const maxDepth = 16

// plain reports what a policy file has no use for, and what could make it grow when it is
// read.
func (c *checker) plain(n *yaml.Node, depth int) bool {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		c.fail(n.Line, "anchors and aliases (& and *) are not supported; write the text out, in quotation marks if it begins with one of these characters")
		return false
	case depth > maxDepth:
		c.fail(n.Line, "this is nested too deeply")
		return false
	}
	for _, child := range n.Content {
		if !c.plain(child, depth+1) {
			return false
		}
	}
	return true
}

// mapping calls read for each key of a map, with its value. read returns false for a key
// that it doesn't know.
func (c *checker) mapping(n *yaml.Node, what string, known string, read func(key string, at, value *yaml.Node) bool) {
	if n.Kind != yaml.MappingNode {
		c.fail(n.Line, "%s must be a map of keys and values", what)
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			c.fail(key.Line, "a key of %s must be a word; known are %s", what, known)
			continue
		}
		if first, again := seen[key.Value]; again {
			c.fail(key.Line, "%s has %q already, on line %d", what, key.Value, first)
			continue
		}
		seen[key.Value] = key.Line
		if !read(key.Value, key, value) {
			c.fail(key.Line, "unknown key %q in %s; known are %s", key.Value, what, known)
		}
	}
}

// sequence gives the items of a list that is not empty.
func (c *checker) sequence(n *yaml.Node, what string) []*yaml.Node {
	switch {
	case n.Kind != yaml.SequenceNode:
		c.fail(n.Line, "%s must be a list, one item per line after a dash", what)
		return nil
	case len(n.Content) == 0:
		c.fail(n.Line, "%s is empty, and so allows nothing; give it an item or leave it out", what)
		return nil
	}
	if c.entries += len(n.Content); c.entries > maxEntries {
		if c.entries-len(n.Content) <= maxEntries {
			c.fail(n.Line, "there are more than %d items in the lists of this file", maxEntries)
		}
		return nil
	}
	return n.Content
}

// text gives a scalar as it is written. YAML takes 17, true and null for other things than
// text; as client IDs and topics they are what is written.
func (c *checker) text(n *yaml.Node, what string) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		c.fail(n.Line, "%s must be text", what)
	case n.ShortTag() == "!!null" && n.Value == "":
		c.fail(n.Line, "%s is missing", what)
	case n.Value == "":
		c.fail(n.Line, "%s is empty", what)
	case len(n.Value) > maxText:
		c.fail(n.Line, "%s has more than %d bytes", what, maxText)
	case strings.ContainsRune(n.Value, 0):
		c.fail(n.Line, "%s has a null character, which no topic, client ID or user name can have", what)
	default:
		return n.Value, true
	}
	return "", false
}

// item is a text of a list, and where it stands.
type item struct {
	text string
	line int
}

// texts gives the items of a list of texts, each once.
func (c *checker) texts(n *yaml.Node, what string) (items []item) {
	seen := map[string]int{}
	for _, one := range c.sequence(n, what) {
		text, ok := c.text(one, "an item of "+what)
		if !ok {
			continue
		}
		if first, again := seen[text]; again {
			c.fail(one.Line, "%s has %q already, on line %d", what, text, first)
			continue
		}
		seen[text] = one.Line
		items = append(items, item{text, one.Line})
	}
	return items
}

// isEmptyList says whether the node is a list without items.
func isEmptyList(n *yaml.Node) bool { return n.Kind == yaml.SequenceNode && len(n.Content) == 0 }
