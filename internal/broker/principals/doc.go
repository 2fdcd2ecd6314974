// Package principals has one record for each principal that has a connection or a session:
// how many of both and how many subscriptions it has, and how fast it publishes. It says
// which connection and which session make room when there is no room for another: every
// answer takes a few steps, however many principals there are.
//
// A principal is what sessions belong to (access.Identity), or the address of clients that
// have not proven who they are.
//
// The broker calls it when a connection comes, is admitted and goes, and for each publish
// of a principal whose rate is bounded; the registry of sessions calls it when a session
// begins, is away and ends. It ends neither connections nor sessions itself, and does not
// read the quotas of principals: they are given to it.
package principals
