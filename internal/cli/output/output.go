// Package output prints what commands have to say: text in lines, or with --output json
// an object in each line. It decides nothing about what is printed.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Format is the --output flag.
type Format struct{ format string }

// AddFlag adds the flag to a command.
func (o *Format) AddFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "text", "output `format`: text or json (one object per line)")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// Check refuses a format that does not exist.
func (o *Format) Check() error {
	if o.format != "text" && o.format != "json" {
		return fmt.Errorf("--output %q: want text or json", o.format)
	}
	return nil
}

// JSON reports whether objects are to be printed.
func (o *Format) JSON() bool { return o.format == "json" }

// Record is one JSON object. What a command doesn't say is left out. Keys and
// values that are not UTF-8 come in base 64, which encoding/json makes of bytes.
type Record struct {
	Event       string  `json:"event,omitempty"`
	Key         *string `json:"key,omitempty"`
	KeyBase64   []byte  `json:"key_base64,omitempty"`
	Found       *bool   `json:"found,omitempty"`
	Applied     *bool   `json:"applied,omitempty"`
	Deleted     *bool   `json:"deleted,omitempty"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"value_base64,omitempty"`
	Version     string  `json:"version,omitempty"`
	Gap         bool    `json:"gap,omitempty"`
}

// NewRecord makes a record of a key.
func NewRecord(key string) *Record {
	r := &Record{}
	if utf8.ValidString(key) {
		r.Key = &key
	} else {
		r.KeyBase64 = []byte(key)
	}
	return r
}

// SetValue adds a value.
func (r *Record) SetValue(value []byte) {
	if utf8.Valid(value) {
		s := string(value)
		r.Value = &s
	} else {
		r.ValueBase64 = value
	}
}

// Write prints the record as one line.
func (r *Record) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// IsTerminal reports whether stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// Word is s as one word of a line: quoted, as in Go, if it would not be one.
func Word(s string) string {
	odd := func(r rune) bool { return r == utf8.RuneError || r == '"' || unicode.IsSpace(r) || !unicode.IsPrint(r) }
	if s == "" || strings.ContainsFunc(s, odd) {
		return strconv.Quote(s)
	}
	return s
}

// Line prints a line that ends with a line feed, or with NUL.
func Line(w io.Writer, line string, null bool) error {
	end := "\n"
	if null {
		end = "\x00"
	}
	_, err := io.WriteString(w, line+end)
	return err
}

// OneLine makes one line of a text, in which what is not printable is escaped, as in Go: the
// text may be another program's, and must not drive the terminal.
func OneLine(s string) string {
	var b strings.Builder
	for _, r := range strings.Join(strings.Fields(s), " ") {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// Counted gives a number with its noun.
func Counted(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// ShellWord is a word as a shell reads it.
func ShellWord(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:,@%=", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
