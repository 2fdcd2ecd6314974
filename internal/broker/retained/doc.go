// Package retained is the store of retained messages: the newest of each topic, its
// bounds for all clients and for each, and its expiry.
//
// The broker puts messages into it and journals them; what has expired the store
// removes from the disk itself. It knows no subscription.
package retained
