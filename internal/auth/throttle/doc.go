// Package throttle bounds what clients that fail to log in cost: how often a client
// address may try after it has failed ([Failures]), and how many expensive checks run and
// wait at a time ([Checks]).
//
// Package auth calls it. It knows addresses and user names, and nothing of passwords.
package throttle
