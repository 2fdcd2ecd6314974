//go:build unix

package passwd

import (
	"os"
	"syscall"
)

// keepOwner gives the file the owner of the one that it replaces: an administrator edits
// a file that the server reads as another user.
func keepOwner(f *os.File, old os.FileInfo) error {
	is, ok := old.Sys().(*syscall.Stat_t)
	if !ok || int(is.Uid) == os.Getuid() && int(is.Gid) == os.Getgid() {
		return nil
	}
	if err := f.Chown(int(is.Uid), int(is.Gid)); err != nil && int(is.Uid) != os.Getuid() {
		return err
	}
	return nil
}

// syncDir makes a rename durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
