// Package webhook asks an HTTP server of the operator's who clients are: with one POST for
// each CONNECT, whose answer it remembers for a while.
//
// The question is a Question as JSON, the answer an Answer. Everything about it is bounded:
// how long a question may take, how many are under way and wait, how long an answer is, how
// many bytes of answers are remembered. A status other than 200, a redirect, an answer that is
// too long, no JSON, or has a field that is not known, is a failure; what follows from one
// says Options.Failure.
//
// Package auth calls it, package server makes it. It knows no connection, and writes no
// password to a log.
package webhook
