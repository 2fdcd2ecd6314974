package abuse

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// networkMark is set in the environment of a process that has its own network.
const networkMark = "HOLDFAST_ABUSE_NETWORK"

// OwnNetwork runs this program again in a network of its own, with nothing in it but
// the loopback interface, and gives the exit status: a server can then listen, and
// attackers come from, where no loopback address is, and no other machine is reached.
// In the program that runs there it prepares that network and returns false, as it
// does where the system does not allow such networks: Isolated tells the two apart.
func OwnNetwork(env ...string) (status int, ran bool, err error) {
	if os.Getenv(networkMark) != "" {
		if err := prepareNetwork(); err != nil {
			return 0, false, fmt.Errorf("prepare a network: %w", err)
		}
		attacker = outside
		return 0, false, nil
	}
	self, err := os.Executable()
	if err != nil {
		return 0, false, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(append(os.Environ(), networkMark+"=1"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if id := os.Getuid(); id != 0 { // what root may do, others may within a set of users of their own
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if err := cmd.Start(); err != nil {
		return 0, false, nil // it is not allowed here
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return 0, true, err
	}
	return cmd.ProcessState.ExitCode(), true, nil
}

// prepareNetwork brings the loopback interface up and gives it the address outside.
func prepareNetwork() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for name, address := range map[string]net.IP{"lo": loopback, "lo:1": outside} {
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := r.SetInet4Addr(address.To4()); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, r); err != nil {
			return fmt.Errorf("address %v: %w", address, err)
		}
		r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r); err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
	}
	return nil
}
