package main

import "syscall"

// endWithParent has the command end when we are killed, which nobody else would
// see to: the lock would go to somebody else while it runs.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGTERM }
