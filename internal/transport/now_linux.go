//go:build linux && !race

package transport

import (
	"syscall"
	"unsafe"
)

// readNow and writeNow are syscall.Read and syscall.Write for a descriptor that
// never makes them wait, hence without a word to Go's scheduler. That saves its
// preparations, and, on a busy machine, the search for a processor afterwards: one
// that is in a system call for long is given to another goroutine.
func readNow(fd uintptr, p []byte) (int, error)  { return callNow(syscall.SYS_READ, fd, p) }
func writeNow(fd uintptr, p []byte) (int, error) { return callNow(syscall.SYS_WRITE, fd, p) }

func callNow(call, fd uintptr, p []byte) (int, error) {
	n, _, errno := syscall.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// gatherNow writes first and what follows by one call.
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
