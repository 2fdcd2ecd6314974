// Package operate has the commands for operators: check, backup, restore and salvage for
// data directories, session for the sessions of a running server, and health. What they do is in
// internal/server.
package operate
