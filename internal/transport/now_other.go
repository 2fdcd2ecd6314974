//go:build unix && (!linux || race)

package transport

import "syscall"

// gatherNow writes the first of the chunks only: the others follow by another call.
func gatherNow(fd uintptr, first []byte, _ *chunk) (int, error) { return syscall.Write(int(fd), first) }
