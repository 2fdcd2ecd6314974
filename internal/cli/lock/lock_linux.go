package lock

import "syscall"

// endWithParent has the kernel end the command when this process is killed. Otherwise
// the command would run on while another client acquires the lock.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGTERM }
