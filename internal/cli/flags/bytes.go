package flags

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Bytes makes a flag of a number of bytes: 65536, 64KiB, 1.5GiB. Multiples are of
// 1024, with or without the iB.
func Bytes(to *int64) pflag.Value { return bytesValue{to} }

// IntBytes is Bytes for a setting that is an int.
func IntBytes(to *int) pflag.Value { return intBytesValue{to} }

type bytesValue struct{ to *int64 }

func (v bytesValue) Type() string { return "BYTES" }

func (v bytesValue) String() string {
	if v.to == nil || *v.to == 0 {
		return ""
	}
	return strconv.FormatInt(*v.to, 10)
}

func (v bytesValue) Set(s string) (err error) {
	*v.to, err = parseBytes(s)
	return err
}

type intBytesValue struct{ to *int }

func (v intBytesValue) Type() string { return "BYTES" }

func (v intBytesValue) String() string {
	if v.to == nil || *v.to == 0 {
		return ""
	}
	return strconv.Itoa(*v.to)
}

func (v intBytesValue) Set(s string) error {
	n, err := parseBytes(s)
	if err == nil && n > math.MaxInt32 {
		err = errors.New("at most 2GiB")
	}
	*v.to = int(n)
	return err
}

func parseBytes(s string) (int64, error) {
	number := strings.TrimSuffix(strings.TrimSuffix(s, "iB"), "B")
	factor := 1.0
	if i := strings.IndexByte("KMGT", last(number)); i >= 0 {
		factor = float64(int64(1) << (10 * (i + 1)))
		number = number[:len(number)-1]
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || n <= 0 || n*factor >= math.MaxInt64 {
		return 0, errors.New("want a positive number of bytes, for example 65536, 64KiB or 1.5GiB")
	}
	return int64(n * factor), nil
}

func last(s string) byte {
	if s == "" {
		return 0
	}
	return s[len(s)-1]
}
