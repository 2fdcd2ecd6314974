package keys

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// keyEncoding is how keys stand in arguments, in lines that are read, and in lines that
// are printed. The zero value is plain.
type keyEncoding struct{ name string }

// The encodings. Each of them can express any key, but plain has no place for a byte
// that ends a line, nor for NUL in an argument.
const (
	plainKeys  = "plain"  // byte for byte
	quotedKeys = "quoted" // "…" with escapes, as in Go and JSON, where a key isn't one printable word
	base64Keys = "base64"
)

var keyEncodings = []string{plainKeys, quotedKeys, base64Keys}

// Set implements pflag.Value.
func (e *keyEncoding) Set(s string) error {
	for _, name := range keyEncodings {
		if s == name {
			e.name = s
			return nil
		}
	}
	return errors.New("want " + e.Want())
}

func (e *keyEncoding) String() string { return e.name }

// Want implements flags.Wanter.
func (e *keyEncoding) Want() string { return "plain, quoted or base64" }

// Type implements pflag.Value.
func (e *keyEncoding) Type() string { return "ENCODING" }

func (e *keyEncoding) addFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().Var(e, "key-encoding", usage)
	_ = cmd.RegisterFlagCompletionFunc("key-encoding", cobra.FixedCompletions(keyEncodings, cobra.ShellCompDirectiveNoFileComp))
}

// decode gives the key that a text stands for.
func (e *keyEncoding) decode(text string) (string, error) {
	switch {
	case e.name == base64Keys:
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return "", fmt.Errorf("key %q is not base64: want for example Y2Fm6Q==, as --key-encoding says", text)
		}
		return string(key), nil
	case e.name == quotedKeys && strings.HasPrefix(text, `"`):
		key, err := strconv.Unquote(text)
		if err != nil {
			return "", fmt.Errorf(`key %s is not quoted rightly: want for example "caf\xe9 1", as --key-encoding says`, text)
		}
		return key, nil
	}
	return text, nil
}

// encode is the way back of decode.
func (e *keyEncoding) encode(key string) string {
	switch e.name {
	case base64Keys:
		return base64.StdEncoding.EncodeToString([]byte(key))
	case quotedKeys:
		return output.Word(key)
	}
	return key
}
