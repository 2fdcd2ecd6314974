package lock

import (
	"os"
	"os/exec"
)

// Ctrl-C reaches the command as well as this process. Windows has no other signal.
var keyboardSignals = []os.Signal{os.Interrupt}

func forwardedSignals(bool) []os.Signal { return keyboardSignals }

func inForeground() bool { return true }

func arrange(*exec.Cmd, bool) {}

func forward(*exec.Cmd, os.Signal, bool) {}

func terminate(child *exec.Cmd, _ bool) { _ = child.Process.Kill() }

func killAll(child *exec.Cmd, _ bool) { _ = child.Process.Kill() }

func exitStatusOf(p *os.ProcessState) int { return p.ExitCode() }
