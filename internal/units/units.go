// Package units reads numbers with units as people write them, in flags and in files of the
// configuration.
package units

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// ParseBytes reads a positive number of bytes: 65536, 64KiB, 1.5GiB. Multiples are of 1024,
// with or without the iB. The error says what is wanted.
func ParseBytes(s string) (int64, error) {
	number := strings.TrimSuffix(strings.TrimSuffix(s, "iB"), "B")
	factor := 1.0
	if number != "" {
		if i := strings.IndexByte("KMGT", number[len(number)-1]); i >= 0 {
			factor = float64(int64(1) << (10 * (i + 1)))
			number = number[:len(number)-1]
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !(n*factor >= 1) || n*factor >= math.MaxInt64 {
		return 0, errors.New("want a positive number of bytes, for example 65536, 64KiB or 1.5GiB")
	}
	return int64(n * factor), nil
}
