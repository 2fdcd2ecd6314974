// Package clocks compares the wall clock of a node of a cluster with those of the others, and
// keeps versions right while it is wrong. Package clustered runs a Comparer and gives its Clock
// to the server.
//
// # Why
//
// The versions of keys follow the clock of the node that leads, and never go back. If that clock
// is ahead by more than the store accepts (--max-clock-skew), no node with a right clock may lead
// afterwards, until its time has come within the skew of the last version. That has to be
// prevented: when it has happened, only time helps.
//
// # What a node does
//
// From time to time, and as soon as its own clock has been stepped, a node asks each other voter
// what time it is (Comparer). Judge says whether its clock is one of a majority of those that
// answer, or wrong: further from the majority's than half of the skew. So the clocks of two nodes
// that are not wrong are within the skew of each other, and each can follow the other as the
// leader. A node whose clock is wrong does not campaign, and gives the leadership away. Where no
// majority agrees, as of two nodes, nothing follows but a line in the log.
//
// The server does not see a step before it was judged: it reads Clock, which goes on with the
// monotonic clock until then. If the clock is wrong, Clock shows the majority's time. So what the
// node writes until another one leads has right versions as well.
package clocks
