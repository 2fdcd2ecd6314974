package bridge

import "errors"

// Reason says in a word why a bridge is not connected. The log says it in a sentence, which has
// names of files and addresses that are not for every client of the broker.
type Reason int32

// The reasons.
const (
	NoReason Reason = iota // it is connected, or has not tried yet
	Itself                 // its URL leads to this broker
	Refused                // a broker has answered with a reason code, for example 0x86 of a wrong password
	Failed                 // a file, the network, TLS, or a connection that was lost
)

// reasonNames are the reasons in metrics and on $SYS.
var reasonNames = [...]string{"none", "itself", "refused", "failed"}

// Reasons are those of a bridge that is not connected.
var Reasons = []Reason{Itself, Refused, Failed}

func (r Reason) String() string { return reasonNames[r] }

// Reason is why the bridge is not connected.
func (l *Link) Reason() Reason { return Reason(l.reason.Load()) }

// Failures is how many attempts to connect, and how many connections, have ended for a reason.
func (l *Link) Failures(r Reason) int64 { return l.failures[r].Load() }

// failed notes why an attempt, or a connection, has ended.
func (l *Link) failed(err error) {
	reason, refusal := Failed, (*Refusal)(nil)
	switch {
	case errors.Is(err, errItself):
		reason = Itself
	case errors.As(err, &refusal):
		reason = Refused
	}
	l.failures[reason].Add(1)
	l.reason.Store(int32(reason))
	l.options.Changed(l)
}
