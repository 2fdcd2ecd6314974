//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package datadir

import (
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// lockDir locks nothing: where open files can't be deleted, as on Windows, the file LOCK
// is enough.
func lockDir(string) (*os.File, error) { return nil, nil }

// Presence says whether an open file still has a name, which it always has here.
type Presence struct{}

// HasName is true.
func (*Presence) HasName(vfs.File) bool { return true }

// IsAt is true.
func IsAt(vfs.File, string) bool { return true }
