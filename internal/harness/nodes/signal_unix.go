//go:build unix

package nodes

import (
	"os"
	"syscall"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// The signals of Pause and Continue.
const (
	pause  = syscall.SIGSTOP
	resume = syscall.SIGCONT
)

var _ os.Signal = pause

// killed says whether SIGKILL has ended a process that has ended.
func killed(p *process.Process) bool {
	status, ok := p.State().Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}
