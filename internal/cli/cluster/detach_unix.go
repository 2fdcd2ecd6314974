//go:build unix && !linux

package cluster

import (
	"os/exec"
	"syscall"
)

// detach keeps signals of the terminal from a child process: this one stops it.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
