package protocol

import (
	"fmt"
	"strconv"
)

// quotedBytes is how much of a name is shown to people.
const quotedBytes = 100

// Quote quotes a key or a pattern for a message that people read; of a long one only
// the beginning, with its length in bytes.
func Quote(name string) string {
	if len(name) <= quotedBytes {
		return strconv.Quote(name)
	}
	return fmt.Sprintf("%q… (%d bytes)", name[:quotedBytes], len(name))
}
