//go:build unix

package lock

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// keyboardSignals are those that a terminal sends to all of its foreground group.
var keyboardSignals = []os.Signal{syscall.SIGINT, syscall.SIGQUIT}

// forwardedSignals are the signals that are passed on to the command.
func forwardedSignals(inherited bool) []os.Signal {
	signals := []os.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}
	if !inherited {
		signals = append(signals, keyboardSignals...)
	}
	return signals
}

// inForeground reports whether standard input is a terminal, and this process in its
// foreground group, which gets the keyboard's signals.
func inForeground() bool {
	group, err := unix.IoctlGetInt(int(os.Stdin.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// arrange prepares how the command can be ended.
func arrange(child *exec.Cmd, ownGroup bool) {
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: ownGroup}
	endWithParent(child.SysProcAttr)
}

func forward(child *exec.Cmd, s os.Signal, ownGroup bool) {
	pid := child.Process.Pid
	if ownGroup {
		pid = -pid
	}
	_ = unix.Kill(pid, s.(syscall.Signal)) // it may have ended just now
}

// terminate asks the command to end, also if it is stopped.
func terminate(child *exec.Cmd, ownGroup bool) {
	forward(child, syscall.SIGTERM, ownGroup)
	forward(child, syscall.SIGCONT, ownGroup)
}

func killAll(child *exec.Cmd, ownGroup bool) {
	if !ownGroup {
		_ = child.Process.Kill() // does nothing once it has been waited for
		return
	}
	forward(child, syscall.SIGKILL, ownGroup)
}

// exitStatusOf is a process' exit status as a shell has it.
func exitStatusOf(p *os.ProcessState) int {
	if w, ok := p.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return p.ExitCode()
}
