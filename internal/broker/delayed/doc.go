// Package delayed keeps messages that are to be published later: timers (protocol, section
// 14).
//
// A timer is two rows on disk (package rows) and nothing in memory, so a million of them
// cost no heap. In memory are what each principal has, when the next one is due, and which
// of the changes the database does not have yet.
//
//	Prepare ──▶ Append ──▶ Commit        a PUBLISH or a transaction sets timers, or cancels them
//	   └──────▶ Withdraw
//
//	Serve ──▶ a page of those that are due ──▶ Options.Publish, one by one
//
// Prepare locks the stripes of the IDs until Commit or Withdraw, and so does Serve for each
// timer that is due. So a timer is either cancelled or published. The rows of a timer are
// deleted by the batch that has the rows of its message in the queues: after a crash the
// message is either still a timer, or in the queues.
//
// # Time
//
// On disk is the time of the wall clock at which a timer is to be looked at. The Store's
// clock is the latest time that the wall clock has claimed, and goes on when the wall clock
// is stepped back: so a timer never waits for what the clock has gained once. If the wall
// clock was stepped forward, an interval that began in this run is not over by that: when
// such a timer is looked at it gets the time that is left, and its rows are written again.
// At a start, a timer whose time is further off than its interval gets its whole interval:
// the clock was ahead when it was set.
package delayed
