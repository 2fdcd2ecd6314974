package consistent

import "time"

// After returns the output m with the request to deliver it after d, from when the server reads
// it: a timer, which is on disk by the same step as the state (protocol, section 14). A server
// other than Holdfast delivers it at once. [Message.WithTimerID] gives it an ID, by which
// client.Client.CancelTimer finds it and another output replaces it; give one to each timer of
// a state-based handler, which may publish its outputs twice.
func After(d time.Duration, m Message) Message { return m.After(d) }

// At is [After] for a time; one that has passed is now. As a state-based handler must decide the
// same again, t must not be derived from time.Now.
func At(t time.Time, m Message) Message { return m.At(t) }
