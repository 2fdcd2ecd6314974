package input

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestLines(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		in   string
		null bool
		want []string
	}{
		{"", false, nil},
		{"a\n\nb\r\nc", false, []string{"a", "", "b\r", "c"}},
		{"a\nb\x00\x00c\x00", true, []string{"a\nb", "", "c"}},
	} {
		var got []string
		for line, err := range Lines(strings.NewReader(test.in), test.null, 100) {
			if err != nil {
				t.Errorf("%q: %v", test.in, err)
			}
			got = append(got, string(line))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%q: %q, want %q", test.in, got, test.want)
		}
		var full []string
		for line := range NonEmptyLines(strings.NewReader(test.in), test.null) {
			full = append(full, line)
		}
		if want := slices.DeleteFunc(slices.Clone(test.want), func(s string) bool { return s == "" }); !slices.Equal(full, want) {
			t.Errorf("%q without empty lines: %q, want %q", test.in, full, want)
		}
	}
}

// A line of the bound is read, one above it is an error, and so is a reader that fails.
func TestLinesEndWithAnError(t *testing.T) {
	t.Parallel()
	last := func(in string) (line string, err error) {
		for l, e := range Lines(strings.NewReader(in), false, 8) {
			line, err = string(l), e
		}
		return line, err
	}
	if line, err := last("a\n1234567\n"); line != "1234567" || err != nil {
		t.Errorf("a line of 8 bytes with its end: %q, %v", line, err)
	}
	if _, err := last("a\n12345678\n"); err == nil || !strings.Contains(err.Error(), "more than 8 bytes without a line feed") {
		t.Errorf("a line that is too long: %v", err)
	}
	failure := errors.New("failure")
	var got error
	for range UntilError(NonEmptyLines(iotest.ErrReader(failure), false), &got) {
		t.Error("a line came of a reader that fails")
	}
	if !errors.Is(got, failure) {
		t.Errorf("a reader that fails: %v", got)
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(name, []byte("of the file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{name: "of the file", "-": "of standard input"} {
		if got, err := File("--valuefile", file, strings.NewReader("of standard input")); string(got) != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", file, got, err, want)
		}
	}
	if _, err := File("--valuefile", name+"2", nil); err == nil || !strings.HasPrefix(err.Error(), "--valuefile: open ") {
		t.Errorf("a file that is not there: %v", err)
	}
}
