// Package autosub says which subscriptions clients have without asking for them, as the
// configuration says: for clients that cannot be changed, or of which all must hear something.
//
// The broker makes these subscriptions when a client connects, by the way of a SUBSCRIBE: the
// policy, the bounds and the disk count as for the client's own. The package knows neither
// sessions nor permissions.
package autosub
