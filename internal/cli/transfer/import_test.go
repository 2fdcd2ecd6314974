package transfer

import (
	"testing"
	"time"
)

// The write of a large value may take longer than that of a small one.
func TestTimeoutOf(t *testing.T) {
	t.Parallel()
	i := importing{timeout: 10 * time.Second}
	for bytes, want := range map[int]time.Duration{0: 10 * time.Second, 1<<20 - 1: 10 * time.Second, 1 << 20: 11 * time.Second, 256 << 20: 266 * time.Second} {
		if got := i.timeoutOf(bytes); got != want {
			t.Errorf("%d bytes: %v, want %v", bytes, got, want)
		}
	}
}
