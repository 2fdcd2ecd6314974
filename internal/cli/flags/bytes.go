package flags

import (
	"errors"
	"math"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/units"
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
	*v.to, err = units.ParseBytes(s)
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
	n, err := units.ParseBytes(s)
	if err == nil && n > math.MaxInt32 {
		err = errors.New("at most 2GiB")
	}
	*v.to = int(n)
	return err
}
