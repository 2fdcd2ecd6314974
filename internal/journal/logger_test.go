package journal

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

// An error for which Pebble gives up says what to do if the disk has no room.
func TestFatalError(t *testing.T) {
	t.Parallel()
	for want, cause := range map[string]error{
		"MANIFEST flush failed: write MANIFEST-000001: no space left on device: is the disk full? Make room on it and start again, nothing is lost": fmt.Errorf("write MANIFEST-000001: %w", syscall.ENOSPC),
		"MANIFEST flush failed: broken": errors.New("broken"),
	} {
		if got := fatalError("MANIFEST flush failed: %v", cause).Error(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}
