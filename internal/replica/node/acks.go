//go:build !holdfast_acks_early

package node

// acksEarly is true in a program that the crash tests build as a negative control: its leader takes a
// batch for committed when it has proposed it. Never otherwise.
const acksEarly = false
