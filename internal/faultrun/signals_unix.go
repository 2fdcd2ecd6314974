//go:build unix

package faultrun

import (
	"os"
	"syscall"
)

// The signals that pause an instance and let it go on.
var pauseSignal, resumeSignal os.Signal = syscall.SIGSTOP, syscall.SIGCONT
