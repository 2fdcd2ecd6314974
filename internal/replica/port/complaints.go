package port

import (
	"net"
	"strings"
	"time"
)

const (
	// complaintPause is how often the log says the same of the same host.
	complaintPause = 10 * time.Second
	// maxComplaints bounds the hosts that are remembered for that, and maxReasons what the log says of one of them
	// in that time.
	maxComplaints, maxReasons = 64, 8
	// maxReason bounds a reason, in bytes: it may quote a certificate that the program which connects made for itself.
	maxReason = 1 << 10
)

// complaints are what the log has said of connections, and when. A node that is refused connects
// again several times in a second; another program may connect as often as it likes, and be refused for another
// reason each time.
type complaints chan map[string]*complaint // by host; capacity 1

type complaint struct {
	since   time.Time
	reasons map[string]bool
}

func newComplaints() complaints {
	c := make(complaints, 1)
	c <- map[string]*complaint{}
	return c
}

// due is what the log is to say of a connection from an address, and remembers that it does; empty: nothing.
func (c complaints) due(address string, err error, now time.Time) string {
	host, _, _ := net.SplitHostPort(address)
	reason := err.Error()
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "…"
	}
	all := <-c
	defer func() { c <- all }()
	of := all[host]
	if of == nil || now.Sub(of.since) >= complaintPause {
		if of == nil && len(all) >= maxComplaints {
			clear(all)
		}
		of = &complaint{since: now, reasons: map[string]bool{}}
		all[host] = of
	}
	if of.reasons[reason] || len(of.reasons) >= maxReasons {
		return ""
	}
	of.reasons[reason] = true
	return reason
}
