package units_test

import (
	"testing"

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
