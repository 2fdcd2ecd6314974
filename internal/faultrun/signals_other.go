//go:build !unix

package faultrun

import "os"

// There are no signals that pause a process here: sending nil fails, and instances are
// only killed.
var pauseSignal, resumeSignal os.Signal
