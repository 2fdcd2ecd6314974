package process

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// Ready is what a helper says when it can begin.
const Ready = "ready\n"

// Helper is this program once more, with other flags, as a process of its own. It works
// until its input is closed, and then writes what it has measured.
type Helper struct {
	Cmd    *exec.Cmd
	Input  io.WriteCloser
	Output io.Reader
}

// StartHelper starts a helper and waits until it is ready.
func StartHelper(args ...string) (*Helper, error) {
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
	h := &Helper{Cmd: cmd, Input: input, Output: output}
	if _, err := io.ReadFull(output, make([]byte, len(Ready))); err != nil {
		input.Close()
		return nil, errors.Join(err, cmd.Wait())
	}
	return h, nil
}
