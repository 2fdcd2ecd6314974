// Package timers calls functions at times of the broker's clock: the expiry of a session,
// a delayed will. One goroutine serves all of them.
package timers
