//go:build unix

package cluster

import (
	"os/exec"
	"syscall"
)

// detach keeps signals of the terminal from a child process.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
