package yamlfault

import (
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]struct {
		line int
		text string
	}{
		"listen:\n\t- a\n":           {2, "the line is indented with a tab: YAML takes blanks only"},
		"data: x\n\tlisten: y":       {2, "the line is indented with a tab: YAML takes blanks only"},
		"a:\n  b: 1\n \tc: 2\n":      {3, "the line is indented with a tab: YAML takes blanks only"},
		"a: @x":                      {1, "found character that cannot start any token"},
		"\ta: 1\n":                   {1, "the line is indented with a tab: YAML takes blanks only"},
		"a: 1\nb: \x1b[2J\n":         {2, "control characters are not allowed"},
		"a: 1\nb: 2\nc: \xff\n":      {3, "invalid leading UTF-8 octet"},
		"a: 1\nb: \"\t\nc: 2":        {2, "found unexpected end of stream"},
		"a: b: c":                    {1, "mapping values are not allowed in this context"},
		"a: [":                       {1, "did not find expected node content"},
		"listen: \"a\"\n  data: x\n": {1, "did not find expected key"},
	} {
		err := yaml.Unmarshal([]byte(content), new(yaml.Node))
		if err == nil {
			t.Errorf("%q is YAML", content)
			continue
		}
		if line, text := Explain(err, []byte(content)); line != want.line || text != want.text {
			t.Errorf("%q: %d, %q; want %d, %q", content, line, text, want.line, want.text)
		}
	}
}
