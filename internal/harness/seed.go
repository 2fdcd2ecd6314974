package harness

import (
	"os"
	"time"
)

// Seed is the seed of a run: the one given, or one of the clock for 0.
func Seed(given uint64) uint64 {
	if given != 0 {
		return given
	}
	return uint64(time.Now().UnixNano())
}

// TempDir makes a directory for a run, and gives what removes it.
func TempDir() (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp("", "holdfast-crash-")
	return dir, func() { os.RemoveAll(dir) }, err
}
