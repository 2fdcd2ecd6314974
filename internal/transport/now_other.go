//go:build unix && (!linux || race)

package transport

import "syscall"

// The race detector counts on these for what goes from one end of a socket to the
// other.
func readNow(fd uintptr, p []byte) (int, error)  { return syscall.Read(int(fd), p) }
func writeNow(fd uintptr, p []byte) (int, error) { return syscall.Write(int(fd), p) }

// gatherNow writes the first of the chunks only: the others follow by another call.
func gatherNow(fd uintptr, first []byte, _ *chunk) (int, error) { return writeNow(fd, first) }
