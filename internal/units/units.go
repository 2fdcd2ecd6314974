// Package units reads and writes numbers of bytes, and reads durations, as people write them, in
// flags, in files of the configuration and in output.
package units

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// decimal is a number without a sign, with digits only.
var decimal = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)

// IsDecimal says whether a number that is not negative is written in decimal digits only. Any
// other form has two readings: 010 is eight in YAML 1.1 and ten elsewhere, and 1_000 and 0x10
// are text in some of the places from which settings come.
func IsDecimal(s string) bool { return decimal.MatchString(s) }

// ParseBytes reads a positive number of bytes: 65536, 64KiB, 1.5GiB. Multiples are of 1024,
// with or without the iB; digits are decimal ones. The error says what is wanted.
func ParseBytes(s string) (int64, error) {
	number := strings.TrimSuffix(strings.TrimSuffix(s, "iB"), "B")
	factor := 1.0
	if number != "" {
		if i := strings.IndexByte("KMGT", number[len(number)-1]); i >= 0 {
			factor = float64(int64(1) << (10 * (i + 1)))
			number = number[:len(number)-1]
		}
	}
	whole, _, _ := strings.Cut(number, ".")
	n, err := strconv.ParseFloat(number, 64)
	if !IsDecimal(whole) || strings.ContainsAny(number, "_eExXpP") || err != nil || !(n*factor >= 1) || n*factor >= math.MaxInt64 {
		return 0, errors.New("want a positive number of bytes, for example 65536, 64KiB or 1.5GiB")
	}
	return int64(n * factor), nil
}

// ParseDuration reads a duration such as 500ms, 1.5s, -2h or 1h05m, as time.ParseDuration does,
// but for its first number, which must be in decimal digits: 010s and .5s are refused.
func ParseDuration(s string) (time.Duration, error) {
	number := strings.TrimPrefix(s, "-")
	if end := strings.IndexFunc(number, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		number = number[:end]
	}
	if !IsDecimal(number) {
		return 0, fmt.Errorf("%q is no duration: want one such as 500ms, 10s or 2h", s)
	}
	return time.ParseDuration(s)
}

// FormatBytes gives a number of bytes, rounded, in the unit that fits it.
func FormatBytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefix := float64(n)/unit, 0
	for value >= unit && prefix < len("KMGT")-1 {
		value /= unit
		prefix++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGT"[prefix])
}
