// Package statefuzz is a test: it plays random packets and commands, valid and
// invalid, on several connections at once against a real server on a real socket,
// whose bounds are small. Every field is tried at 0, at 1, at its bound, at one more,
// and at the bound of the packet.
//
// After each sequence other connections check that the server is as it was: every
// shard and stripe of the store answers, messages are routed, retained and found by
// SCAN, and what the sequence made the server hold has come back: queues, memory and
// what the pool of memory is charged with, connections, goroutines, descriptors.
//
// A sequence follows from its seed, apart from how its connections interleave.
// TestSequences plays sequences for some seconds, and for longer with -for; the seed is
// printed, and -seed plays it again. FuzzSequence is the same for `make fuzz`.
package statefuzz
