package cluster

import (
	"os/exec"
	"syscall"
)

// detach keeps signals of the terminal from a child process: this one stops it. If this process is killed, so is
// the child; another signal would come once for each thread of this process.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
