// Package abuse attacks the built program from outside, as a client with bad
// intentions would, and measures what its other users notice.
//
// Each Attack is a flood or a hoard that a few connections can cause: packets that
// never end, answers that are never read, filters, watches and sessions without
// end, patterns and packets that take long to work through. Run starts the program
// in a process of its own, lets a bystander work on a connection of its own, first
// in quiet and then beside the attack, and reports figures: the resident memory,
// the bystander's latencies, whether a newcomer and an operator get through,
// whether processor and memory are free again when the attackers have left, how
// much was logged, and how long a stop takes.
//
// It knows the program by its flags, its sockets and /proc alone. An attack says
// what must hold, not how the program achieves it. Command attack runs all of them
// at full size; the package's tests run them with small bounds.
package abuse
