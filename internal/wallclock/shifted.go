//go:build holdfast_shifted_clock

package wallclock

import (
	"os"
	"strconv"
)

// ShiftMs is that of the environment.
var ShiftMs = fromEnvironment()

func fromEnvironment() int64 {
	said := os.Getenv("HOLDFAST_TEST_CLOCK_SHIFT_MS")
	if said == "" {
		return 0
	}
	shift, err := strconv.ParseInt(said, 10, 64)
	if err != nil {
		panic(err)
	}
	return shift
}
