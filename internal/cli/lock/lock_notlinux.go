//go:build unix && !linux

package lock

import "syscall"

// endWithParent has no equivalent here.
func endWithParent(*syscall.SysProcAttr) {}
