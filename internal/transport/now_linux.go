//go:build linux && !race

package transport

import (
	"syscall"
	"unsafe"
)

// gatherNow writes first and what follows by one call, which never waits (package nowait).
func gatherNow(fd uintptr, first []byte, next *chunk) (int, error) {
	var parts [maxGathered]syscall.Iovec
	parts[0].Base = unsafe.SliceData(first)
	parts[0].SetLen(len(first))
	count := 1
	for ; next != nil && count < maxGathered; next = next.next {
		parts[count].Base = unsafe.SliceData(next.p)
		parts[count].SetLen(len(next.p))
		count++
	}
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&parts)), uintptr(count))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
