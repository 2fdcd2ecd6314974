//go:build unix && !linux

package main

import "syscall"

// endWithParent has no equivalent here.
func endWithParent(*syscall.SysProcAttr) {}
