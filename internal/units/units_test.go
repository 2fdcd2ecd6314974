package units_test

import (
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/units"
)

func TestParseBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"1": 1, "65536": 65536, "64KiB": 64 << 10, "64K": 64 << 10, "64KB": 64 << 10, "1.5GiB": 3 << 29, "2T": 2 << 40} {
		if got, err := units.ParseBytes(text); got != want || err != nil {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "K", "iB", "0", "0.5", "-1", "1X", "1e30", "1e3", "010", "0x10", "1_000", "1.0_1", "1.5e3", "+5", ".5K", " 5", "NaN", "inf", "9223372036854775807"} {
		if got, err := units.ParseBytes(text); err == nil {
			t.Errorf("%q is taken for %d bytes", text, got)
		}
	}
}

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "10s": 10 * time.Second, "1.5s": 1500 * time.Millisecond, "0.5s": 500 * time.Millisecond, "-2h": -2 * time.Hour,
		"1h30m": 90 * time.Minute, "1h05m": 65 * time.Minute,
	} {
		if got, err := units.ParseDuration(text); got != want || err != nil {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-", "s", "10", "010s", "-010s", "00s", "0x10s", "1_0s", ".5s", "+5s", " 5s", "5 s", "5x", "1e3s", "9999999999h"} {
		if got, err := units.ParseDuration(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}
