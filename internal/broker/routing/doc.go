// Package routing decides which sessions and shared subscriptions get a message, and
// whether the queues have room for it.
//
// [Router.Publish] stores a message that is to be retained, routes it, and has the
// sessions journal it. [Router.ResumeFeed] feeds a session from what isn't in its queue
// in memory: messages on disk, backlogs, retained messages for new subscriptions.
package routing
