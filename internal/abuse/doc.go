// Package abuse attacks the built program as a malicious client would, and measures
// the effect on other clients.
//
// Each Attack is a load that a few connections can cause: packets that never end,
// responses that are never read, any number of filters, watches and sessions, patterns
// and packets that take long to process. Run starts the program in a separate process,
// lets a bystander work on its own connection, first alone and then during the attack,
// and reports figures: the resident memory,
// the bystander's latencies, whether a newcomer and an operator get through,
// whether processor and memory are free again when the attackers have left, how
// much was logged, and how long a stop takes.
//
// It knows the program by its flags, its sockets and /proc alone. An attack says
// what must hold, not how the program achieves it. Command attack runs all of them
// at full size; the package's tests run them with small bounds.
package abuse
