package access

import "time"

// Quota bounds what one principal holds and does, in all of its connections and sessions
// together. A field that is 0 sets no bound of its own: the server's setting for every
// principal applies, if it has one.
//
// A principal is what owns sessions (Identity.Owner). Of a client that has not proven who
// it is, connections, sessions, subscriptions and rates count for the address that it comes
// from, keys and retained messages for its client ID.
type Quota struct {
	Connections   int64 // at once
	Sessions      int64 // connected or away
	Subscriptions int64 // of all of these sessions
	Keys          int64 // of the state store, that the principal has written last
	KeyBytes      int64 // of those keys and their values
	Retained      int64 // retained messages that the principal has published last
	RetainedBytes int64 // of those messages

	Publishes    int64 // PUBLISH packets a second
	PublishBytes int64 // bytes of these packets a second

	// TimestampSkew is how far ahead of the server's clock timestamps of the principal's
	// requests to the state store may be, at least 1 ms; the server's setting is an upper
	// bound of it.
	TimestampSkew time.Duration
	// Reserve says that the principal gets a connection and a session when all clients
	// together have reached their bound, as long as the reserve lasts.
	Reserve bool
}

// NoQuota is the Quota that bounds nothing.
var NoQuota Quota

// Limited says whether rates are bounded.
func (q *Quota) Limited() bool { return q.Publishes > 0 || q.PublishBytes > 0 }

// AtMost is a bound of a Quota, or, if that is 0, the server's setting.
func AtMost(own, setting int64) int64 {
	if own > 0 {
		return own
	}
	return setting
}

// QuotaOf asks may, which is nil if every client may do everything.
func QuotaOf(may Permissions, id *Identity) *Quota {
	if may == nil {
		return &NoQuota
	}
	return &may.Grants(id).Quota
}
