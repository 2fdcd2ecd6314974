package keys

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/input"
	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// operands are KEY and VALUE, each given by a flag or by its place.
type operands struct {
	key       string
	encoding  keyEncoding // of the key
	value     string
	valueFile string
}

func (o *operands) addKeyFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.key, "key", "k", "", "the key, instead of KEY")
	o.encoding.addFlag(cmd, "how the key is given: plain, quoted or base64, as scan prints it")
}

func (o *operands) addValueFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.value, "value", "", "the value, instead of VALUE")
	cmd.Flags().StringVarP(&o.valueFile, "valuefile", "f", "", "read the value from this `file`, - for standard input")
}

// takeKey returns the key and the arguments that are left.
func (o *operands) takeKey(cmd *cobra.Command, args []string) (key string, rest []string, err error) {
	key = o.key
	if !cmd.Flags().Changed("key") {
		if len(args) == 0 {
			return "", nil, fmt.Errorf("no key is given; usage: %s", cmd.UseLine())
		}
		key, args = args[0], args[1:]
	}
	key, err = o.encoding.decode(key)
	return key, args, err
}

// takeOnlyKey is takeKey for commands without a value.
func (o *operands) takeOnlyKey(cmd *cobra.Command, args []string) (string, error) {
	key, rest, err := o.takeKey(cmd, args)
	if err != nil {
		return "", err
	}
	return key, flags.NothingLeft(cmd, rest)
}

// takeKeyAndValue returns both, the value byte for byte.
func (o *operands) takeKeyAndValue(cmd *cobra.Command, args []string) (key string, value []byte, err error) {
	key, rest, err := o.takeKey(cmd, args)
	if err != nil {
		return "", nil, err
	}
	byFlag, byFile := cmd.Flags().Changed("value"), cmd.Flags().Changed("valuefile")
	switch {
	case byFlag && byFile:
		return "", nil, errors.New("--value and --valuefile exclude each other")
	case byFlag:
		value = []byte(o.value)
	case byFile:
		value, err = input.File("--valuefile", o.valueFile, cmd.InOrStdin())
	case len(rest) > 0:
		value, rest = []byte(rest[0]), rest[1:]
	default:
		return "", nil, fmt.Errorf("no value is given: give VALUE, --value, -f FILE, or -f - for standard input; usage: %s", cmd.UseLine())
	}
	if err != nil {
		return "", nil, err
	}
	return key, value, flags.NothingLeft(cmd, rest)
}

// parsePX reads a number of milliseconds, or a duration such as 1.5s or 2h.
func parsePX(s string) (time.Duration, error) {
	if units.IsDecimal(s) {
		ms, err := strconv.ParseInt(s, 10, 64)
		if err != nil || ms <= 0 || ms > int64(1<<63-1)/int64(time.Millisecond) {
			return 0, fmt.Errorf("--px %s: it must be positive and less than 292 years", s)
		}
		return time.Duration(ms) * time.Millisecond, nil
	}
	d, err := units.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("--px %s: want a positive number of milliseconds, or a duration such as 1.5s or 2h", s)
	}
	return d, nil
}

// fencing is the flag of all writes.
type fencing struct{ token string }

func (f *fencing) addFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.token, "fencing-token", "", "fencing token: the `version` under which you hold the lock")
}

// option is nil if no token is given.
func (f *fencing) option(cmd *cobra.Command) (client.WriteOption, error) {
	if !cmd.Flags().Changed("fencing-token") {
		return nil, nil
	}
	token, err := hlc.Parse(f.token)
	if err != nil {
		return nil, fmt.Errorf("--fencing-token %q: %w", f.token, err)
	}
	return client.Fencing(token), nil
}
