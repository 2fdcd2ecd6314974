// Package operate has the commands for operators: check, backup, restore and salvage for
// data directories, and session for the sessions of a running server. What they do is in
// internal/server.
package operate
