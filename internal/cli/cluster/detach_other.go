//go:build !unix

package cluster

import "os/exec"

// detach does nothing on this system.
func detach(*exec.Cmd) {}
