// Package txn is the command txn: it reads a transaction as JSON, has the server carry it
// out, and prints what came of it.
package txn
