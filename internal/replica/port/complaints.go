package port

import (
	"net"
	"time"
)

const (
	// complaintPause is how often the log says the same of the same host.
	complaintPause = 10 * time.Second
	// maxComplaints bounds what is remembered for that.
	maxComplaints = 64
)

// complaints are what the log has said of connections, and when. A node that is refused tries again
// several times in a second, and a stranger as often as it likes.
type complaints chan map[string]time.Time // capacity 1

func newComplaints() complaints {
	c := make(complaints, 1)
	c <- map[string]time.Time{}
	return c
}

// due says whether the log is to say this of a connection from an address, and remembers that it does.
func (c complaints) due(address string, err error, now time.Time) bool {
	host, _, _ := net.SplitHostPort(address)
	key := host + " " + err.Error()
	said := <-c
	defer func() { c <- said }()
	if at, before := said[key]; before && now.Sub(at) < complaintPause {
		return false
	}
	if len(said) >= maxComplaints {
		clear(said)
	}
	said[key] = now
	return true
}
