// Package filestate tells whether files have changed since they were read, by what the file
// system says of them. It reads none.
package filestate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// State is how a file looked at a moment. A file that another has been renamed to is another
// file, even if length and time are the same.
type State struct {
	name    string
	info    os.FileInfo // nil: it can't be looked at
	missing bool
}

// Of looks at files.
func Of(names []string) (states []State) {
	for _, name := range names {
		info, err := os.Stat(name)
		states = append(states, State{name: name, info: info, missing: errors.Is(err, fs.ErrNotExist)})
	}
	return states
}

// Same says whether a file has not changed between two moments.
func Same(a, b State) bool {
	if a.name != b.name || a.missing != b.missing || (a.info == nil) != (b.info == nil) {
		return false
	}
	return a.info == nil || os.SameFile(a.info, b.info) && a.info.Size() == b.info.Size() && a.info.ModTime().Equal(b.info.ModTime()) && a.info.Mode() == b.info.Mode()
}

// MayPass says whether an error is about reading a file that is there, and not about what is
// in it: no descriptor or no memory was left, or the disk or the file's owner refused it.
// That may pass without a change of the file that a look would notice.
func MayPass(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) && !errors.Is(err, fs.ErrNotExist)
}

// Readable refuses what is no file: opening a pipe would wait for its writer, and with it
// all that is to be read, and the end of the server.
func Readable(states []State) error {
	for _, f := range states {
		if f.info != nil && !f.info.Mode().IsRegular() {
			return fmt.Errorf("%s: this is not a regular file", f.name)
		}
	}
	return nil
}
