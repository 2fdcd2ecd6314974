// Package exit defines the exit statuses of the program's commands, and the errors
// that stand for them. The commands return these errors; cmd/holdfast makes an exit
// status of what a command returned.
package exit

import "strconv"

// The exit statuses.
const (
	Done   = 0
	No     = 1 // not found, not applied
	Failed = 2

	// Of a command that could not be run, as shells have them.
	NotExecutable = 126
	NotFound      = 127
)

// Negative is an answer of the store that is a "no" and not an error.
type Negative string

func (n Negative) Error() string { return string(n) }

// Status is the exit status of the command that holdfast lock ran, if not 0. It is
// passed through, and nothing is added to what that command has printed.
type Status int

func (s Status) Error() string { return "exit status " + strconv.Itoa(int(s)) }
