// Package yamlfault says in words what a file is that is not YAML, for the configuration and for
// policies. It reads no settings.
package yamlfault

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Explain says on which line of the content an error of the YAML decoder is, which says
// "yaml: line 3: …", and what is wrong there. line is 0 if it is not known.
func Explain(err error, content []byte) (line int, text string) {
	text = strings.TrimPrefix(err.Error(), "yaml: ")
	if n, _ := fmt.Sscanf(text, "line %d:", &line); n != 1 {
		line = unnamed(text, content)
	} else {
		_, text, _ = strings.Cut(text, ": ")
	}
	lines := bytes.Split(content, []byte("\n"))
	// Of some errors the decoder names the line before.
	for n := line; n <= line+1 && n >= 1 && n <= len(lines); n++ {
		if indentedByTab(lines[n-1]) && (n == line || strings.Contains(text, "tab character")) {
			return n, "the line is indented with a tab: YAML takes blanks only"
		}
	}
	return line, text
}

// unnamed is the line of an error for which the decoder names none: the first line, unless a
// byte cannot be read.
func unnamed(text string, content []byte) int {
	if !strings.Contains(text, "UTF-") && !strings.HasPrefix(text, "control characters") {
		return 1
	}
	bad := func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) && r != '\t' && r != '\r' }
	for i, line := range bytes.Split(content, []byte("\n")) {
		if bytes.ContainsFunc(line, bad) {
			return i + 1
		}
	}
	return 0
}

func indentedByTab(line []byte) bool {
	indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
	return bytes.IndexByte(indent, '\t') >= 0
}
