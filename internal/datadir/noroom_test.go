package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

// What Windows says of a full disk is taken for one there, and only there: on Linux the
// same numbers mean something else (112 is EHOSTDOWN).
func TestErrorsOfAFullDisk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		system string
		err    error
		want   bool
	}{
		{"no space", "linux", syscall.ENOSPC, true},
		{"quota", "linux", syscall.EDQUOT, true},
		{"limit of a file's size", "linux", syscall.EFBIG, true},
		{"a disk that fails", "linux", syscall.EIO, false},
		{"ERROR_DISK_FULL", "windows", syscall.Errno(112), true},
		{"ERROR_HANDLE_DISK_FULL", "windows", syscall.Errno(39), true},
		{"ERROR_DISK_QUOTA_EXCEEDED", "windows", syscall.Errno(1295), true},
		{"ERROR_FILE_TOO_LARGE", "windows", syscall.Errno(223), true},
		{"ERROR_CRC", "windows", syscall.Errno(23), false},
		{"the number of ERROR_DISK_FULL", "linux", syscall.Errno(112), false},
		{"the number of ERROR_HANDLE_DISK_FULL", "linux", syscall.Errno(39), false},
		{"no error of the system's", "windows", errors.New("full"), false},
		{"no error", "windows", nil, false},
	} {
		t.Run(c.system+", "+c.name, func(t *testing.T) {
			t.Parallel()
			err := c.err
			if err != nil { // as a file has it
				err = fmt.Errorf("batch 9: %w", &fs.PathError{Op: "write", Path: "log", Err: c.err})
			}
			if got := meansNoRoom(c.system, err); got != c.want {
				t.Errorf("meansNoRoom(%q, %v) = %v", c.system, err, got)
			}
		})
	}
}
