package main

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

// output is the --output flag.
type output struct{ format string }

func (o *output) addFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "text", "output `format`: text or json (one object per line)")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

func (o *output) check() error {
	if o.format != "text" && o.format != "json" {
		return fmt.Errorf("--output %q: want text or json", o.format)
	}
	return nil
}

func (o *output) json() bool { return o.format == "json" }

// record is one JSON object. What a command doesn't say is left out. Keys and
// values that are not UTF-8 come in base 64, which encoding/json makes of bytes.
type record struct {
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

func newRecord(key string) *record {
	r := &record{}
	if utf8.ValidString(key) {
		r.Key = &key
	} else {
		r.KeyBase64 = []byte(key)
	}
	return r
}

func (r *record) setValue(value []byte) {
	if utf8.Valid(value) {
		s := string(value)
		r.Value = &s
	} else {
		r.ValueBase64 = value
	}
}

// write prints the record as one line.
func (r *record) write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// isTerminal reports whether a person reads what is written to w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// word is s as one word of a line: quoted, as in Go, if it would not be one.
func word(s string) string {
	odd := func(r rune) bool { return r == utf8.RuneError || r == '"' || unicode.IsSpace(r) || !unicode.IsPrint(r) }
	if s == "" || strings.ContainsFunc(s, odd) {
		return strconv.Quote(s)
	}
	return s
}
