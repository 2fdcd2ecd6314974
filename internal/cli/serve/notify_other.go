//go:build !linux

package serve

import "time"

// monotonic is 0: no service manager asks for it here.
func monotonic() time.Duration { return 0 }
