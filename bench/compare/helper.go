package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// ready is what a helper says when it can begin.
const ready = "ready\n"

// helper is this program once more, with other flags, as a process of its own. It works
// until its input is closed, and then writes what it has measured.
type helper struct {
	cmd    *exec.Cmd
	input  io.WriteCloser
	output io.Reader
}

// startHelper starts a helper and waits until it is ready.
func startHelper(args ...string) (*helper, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	input, err1 := cmd.StdinPipe()
	output, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return nil, err
	}
	h := &helper{cmd: cmd, input: input, output: output}
	if _, err := io.ReadFull(output, make([]byte, len(ready))); err != nil {
		input.Close()
		return nil, errors.Join(err, cmd.Wait())
	}
	return h, nil
}
