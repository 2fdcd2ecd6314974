package serve

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// notifier tells the service manager that has started the process what state it is in, by
// the protocol of sd_notify(3): a datagram of lines NAME=VALUE to the Unix socket that the
// variable NOTIFY_SOCKET names. Without the variable it does nothing.
//
// The package github.com/coreos/go-systemd/v22/daemon does the same, and its module needs
// that of D-Bus.
type notifier struct {
	socket string // a path, or @ and a name in Linux's abstract namespace; empty: no service manager asks
}

// newNotifier takes the socket's name out of the environment, so that no program that this
// one starts speaks for it.
func newNotifier() notifier {
	n := notifier{socket: os.Getenv("NOTIFY_SOCKET")}
	_ = os.Unsetenv("NOTIFY_SOCKET")
	return n
}

// ready says that clients are served; status is a line for systemctl status.
func (n notifier) ready(status string) { n.send("READY=1", "STATUS="+status) }

// status says what the process is doing.
func (n notifier) status(what string) { n.send("STATUS=" + what) }

// reloading says that configuration files are being read again, until ready says that they
// have been.
func (n notifier) reloading() {
	lines := []string{"RELOADING=1"}
	if now := monotonic(); now > 0 { // which units of type notify-reload ask for
		lines = append(lines, fmt.Sprintf("MONOTONIC_USEC=%d", now.Microseconds()))
	}
	n.send(lines...)
}

// stopping says that the server shuts down.
func (n notifier) stopping() { n.send("STOPPING=1", "STATUS=shutting down") }

// send does not report errors: the server serves whether or not its manager listens, and a
// manager that has not heard of READY=1 logs that itself.
func (n notifier) send(lines ...string) {
	if n.socket == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetWriteDeadline(time.Now().Add(notifyTimeout))
	_, _ = conn.Write([]byte(strings.Join(lines, "\n")))
}

// notifyTimeout bounds how long a service manager whose socket is full holds up the server.
const notifyTimeout = time.Second
