package holdfast_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/cli/root"
)

// filesOf returns the files of the checkout with this ending, those of the modules
// inside it included.
func filesOf(t *testing.T, ending string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || len(d.Name()) > 1 && d.Name()[0] == '.'):
			return fs.SkipDir
		case strings.HasSuffix(path, ending):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func textOf(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	lineOfComment = regexp.MustCompile(`\n\s*//\s?`)
	// citation is one or more sections, and a part of them that is named: "section 6,
	// Expiry". The document stands before it, or behind: "section 2 of the protocol".
	citation = regexp.MustCompile(`(?i)\bsections? (\d[\d.]*\d|\d)((?:,? (?:and|to) \d[\d.]*|, \d[\d.]*)*)(?:, ([A-Za-z ]+))?( of the protocol)?`)
	number   = regexp.MustCompile(`\d+(?:\.\d+)*`)
	// standard is a document that is not in the repository.
	standard = regexp.MustCompile(`(MQTT 5|MQTT 3\.1\.1|RFC \d+|the standard's),? $`)
	own      = regexp.MustCompile(`(?i)protocol(,| \() ?$`)
)

// TestCitationsResolve finds every section that a Go file cites. Either it is one of
// docs/protocol.md, with the part that the citation names, or the citation says which
// standard it means.
func TestCitationsResolve(t *testing.T) {
	t.Parallel()
	sections := sectionsOf(t, "docs/protocol.md")
	var parts []string // of all sections
	for _, has := range sections {
		parts = append(parts, has...)
	}
	cited := 0
	for _, file := range filesOf(t, ".go") {
		if file == "docs_test.go" {
			continue
		}
		text := lineOfComment.ReplaceAllString(textOf(t, file), " ")
		for _, at := range citation.FindAllStringSubmatchIndex(text, -1) {
			group := func(i int) string {
				if at[2*i] < 0 {
					return ""
				}
				return text[at[2*i]:at[2*i+1]]
			}
			before := text[max(0, at[0]-40):at[0]]
			if standard.MatchString(before) {
				continue
			}
			if !own.MatchString(before) && group(4) == "" {
				t.Errorf("%s cites %q and does not say of which document: want protocol, MQTT 5, …", file, group(0))
				continue
			}
			cited++
			part := strings.ToLower(strings.TrimSpace(group(3)))
			named := slices.Contains(parts, part) || group(3) != "" && group(3)[0] <= 'Z'
			for _, n := range number.FindAllString(group(1)+group(2), -1) {
				has, known := sections[n]
				if !known {
					t.Errorf("%s cites section %s of the protocol, which docs/protocol.md does not have", file, n)
				} else if named && !slices.ContainsFunc(has, func(heading string) bool { return strings.Contains(heading, part) }) {
					t.Errorf("%s cites %q of section %s of the protocol, which has the parts %q", file, part, n, has)
				}
			}
		}
	}
	if cited < 60 {
		t.Errorf("found %d citations of the protocol, there are more", cited)
	}
}

// sectionsOf returns the numbered sections of a page, each with the names of its parts
// in lower case.
func sectionsOf(t *testing.T, page string) map[string][]string {
	t.Helper()
	sections := map[string][]string{}
	current := ""
	for _, line := range strings.Split(textOf(t, page), "\n") {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			if n, _, numbered := strings.Cut(heading, ". "); numbered {
				current = n
				sections[n] = []string{}
			}
		}
		if heading, ok := strings.CutPrefix(line, "### "); ok {
			sections[current] = append(sections[current], strings.ToLower(heading))
		}
	}
	return sections
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinksOfThePagesResolve follows every link between files of the checkout, and to a
// heading in them.
func TestLinksOfThePagesResolve(t *testing.T) {
	t.Parallel()
	for _, page := range filesOf(t, ".md") {
		for _, m := range link.FindAllStringSubmatch(textOf(t, page), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchorsOf(t, file), anchor) {
				t.Errorf("%s links to %s, and no heading of that page has this name", page, m[1])
			}
		}
	}
}

var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)

// anchorsOf returns the names that headings of a page have in links.
func anchorsOf(t *testing.T, page string) (anchors []string) {
	t.Helper()
	for _, line := range strings.Split(textOf(t, page), "\n") {
		if heading := strings.TrimLeft(line, "#"); heading != line && strings.HasPrefix(heading, " ") {
			name := notInAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			anchors = append(anchors, strings.ReplaceAll(name, " ", "-"))
		}
	}
	return anchors
}

// TestGlossaryHasEachTermOnce holds the glossary to its purpose: one name for a concept,
// one concept for a name, found by the alphabet.
func TestGlossaryHasEachTermOnce(t *testing.T) {
	t.Parallel()
	_, glossary, found := strings.Cut(textOf(t, "docs/protocol.md"), "## 13. Glossary")
	if !found {
		t.Fatal("docs/protocol.md has no glossary")
	}
	glossary, _, _ = strings.Cut(glossary, "\n## ")
	seen := map[string]bool{}
	last := ""
	for _, line := range strings.Split(glossary, "\n") {
		if strings.HasPrefix(line, "### ") {
			last = ""
		}
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.Contains(line, "---") || strings.TrimSpace(cells[1]) == "term" {
			continue
		}
		term := strings.ToLower(strings.TrimSpace(cells[1]))
		if seen[term] {
			t.Errorf("the glossary has %q twice", term)
		}
		if term < last {
			t.Errorf("the glossary has %q after %q", term, last)
		}
		seen[term], last = true, term
	}
	if len(seen) < 40 {
		t.Errorf("the glossary has %d terms, there are more: is it still a table?", len(seen))
	}
}

// TestAttacksNameTheirTests finds the tests that the table of attacks in docs/security.md
// names for each of its rows, in the packages that it says.
func TestAttacksNameTheirTests(t *testing.T) {
	t.Parallel()
	_, table, found := strings.Cut(textOf(t, "docs/security.md"), "| attack tried | what happened | test |\n|---|---|---|\n")
	if !found {
		t.Fatal("docs/security.md has no table of attacks")
	}
	named := regexp.MustCompile("`([^`]+)`: ((?:`(?:Test|Fuzz)\\w+`(?:, )?)+)")
	rows := 0
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(row, "| \n"), " | ")
		if len(cells) != 3 {
			break // the end of the table
		}
		rows++
		packages := named.FindAllStringSubmatch(cells[2], -1)
		if rest := strings.Trim(named.ReplaceAllString(cells[2], ""), "; "); len(packages) == 0 || rest != "" {
			t.Errorf("want `PACKAGE`: `TestOne`, `TestTwo`; … for each row, and not %q: %s", cells[2], cells[0])
		}
		for _, p := range packages {
			code := ""
			files, err := filepath.Glob(filepath.Join(p[1], "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				code += textOf(t, file)
			}
			for name := range strings.SplitSeq(p[2], ", ") {
				if name = strings.Trim(name, "`"); !strings.Contains(code, "\nfunc "+name+"(") {
					t.Errorf("%s has no test %s, which is named for: %s", p[1], name, cells[0])
				}
			}
		}
	}
	if rows < 50 {
		t.Errorf("the table of attacks has %d rows; is this all of it?", rows)
	}
}

var inlineCommand = regexp.MustCompile("`holdfast ([^`\n]+)`")

// TestCommandsOfThePages looks up each command that stands in a sentence or a table of a
// page, with its flags.
func TestCommandsOfThePages(t *testing.T) {
	t.Parallel()
	found := 0
	for _, page := range filesOf(t, ".md") {
		for _, m := range inlineCommand.FindAllStringSubmatch(textOf(t, page), -1) {
			words, _, _ := strings.Cut(m[1], " -- ") // behind it is another program's command
			words, _, _ = strings.Cut(words, " | ")
			if strings.HasPrefix(words, "COMMAND ") { // any command
				continue
			}
			program := root.New("")
			program.InitDefaultCompletionCmd() // which Execute adds
			command, rest, err := program.Find(strings.Fields(words))
			if err != nil || !command.HasParent() {
				t.Errorf("%s has `holdfast %s`, and there is no such command", page, m[1])
				continue
			}
			found++
			for _, word := range rest {
				name, _, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
				if strings.HasPrefix(word, "--") && name != "help" && command.Flags().Lookup(name) == nil {
					t.Errorf("%s has `holdfast %s`, and the command has no flag --%s", page, m[1], name)
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("found %d commands, there are more", found)
	}
}
