// Package share is the shared subscriptions of a broker.
//
//   - A [Group] passes each message to one of its members, in turn (group.go).
//   - A [Backlog] has the messages that no member could take: on disk, with hardly more
//     than the ends in memory. Its Group locks it, and reads it back (load.go).
//
// Package routing makes groups and has members join and leave. A member's session says
// whether it has room (session.Session.Offer).
package share
