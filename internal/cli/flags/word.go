package flags

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Word is a flag's value that is one of some words.
func Word(to *string, words ...string) pflag.Value { return &wordValue{to, words} }

type wordValue struct {
	to    *string
	words []string
}

func (v *wordValue) String() string {
	if v.to == nil {
		return ""
	}
	return *v.to
}

// Type is what the help calls the value.
func (v *wordValue) Type() string { return "WORD" }

// Set implements pflag.Value.
func (v *wordValue) Set(s string) error {
	if !slices.Contains(v.words, s) {
		return errors.New("want " + v.Want())
	}
	*v.to = s
	return nil
}

// Want implements Wanter.
func (v *wordValue) Want() string {
	last := len(v.words) - 1
	return strings.Join(v.words[:last], ", ") + " or " + v.words[last]
}
