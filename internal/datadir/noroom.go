package datadir

import (
	"errors"
	"runtime"
	"syscall"
)

// IsNoRoom tells errors of a disk, a quota or a limit that is reached from those of a
// disk that fails.
func IsNoRoom(err error) bool { return meansNoRoom(runtime.GOOS, err) }

// Error codes of Windows, where syscall.ENOSPC and its kin are numbers that Go has made
// up and the system never returns.
const (
	windowsHandleDiskFull    = syscall.Errno(39)   // ERROR_HANDLE_DISK_FULL
	windowsDiskFull          = syscall.Errno(112)  // ERROR_DISK_FULL
	windowsFileTooLarge      = syscall.Errno(223)  // ERROR_FILE_TOO_LARGE
	windowsDiskQuotaExceeded = syscall.Errno(1295) // ERROR_DISK_QUOTA_EXCEEDED
)

// meansNoRoom is IsNoRoom on an operating system, as runtime.GOOS names it.
func meansNoRoom(system string, err error) bool {
	codes := []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG}
	if system == "windows" {
		codes = append(codes, windowsHandleDiskFull, windowsDiskFull, windowsFileTooLarge, windowsDiskQuotaExceeded)
	}
	for _, code := range codes {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}
