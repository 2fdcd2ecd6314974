//go:build !unix

package nodes

import (
	"os"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// This system cannot pause a process.
var (
	pause  os.Signal = os.Interrupt
	resume os.Signal = os.Interrupt
)

// killed says whether a process that has ended was killed, as far as that can be seen.
func killed(p *process.Process) bool { return !p.State().Success() }
