// Package lock has the command lock: it acquires a lock (client/lease), runs a command
// while it holds it, and ends that command before the lock can be acquired by another
// client.
package lock
