// Package snapshot carries a whole database from the node that leads to one that lacks entries
// which the leader's log does not have any more, and puts it in the place of the old one there.
// Package node decides when, and tells the consensus.
//
// # On the wire
//
// A connection of its own, in frames. All numbers are little-endian:
//
//	sum      4  CRC-32C of what follows in the frame
//	length   4  of the content, 256 KiB at the most (of a header: 16 MiB)
//	kind     1
//	content
//
//	sender                              receiver
//	offer   who sends to whom, JSON →
//	                                  ← answer  ready, and which sums it knows, or why not, JSON
//	header  files, message, sums, JSON →
//	                                  ← answer  there is room, and what it has already, JSON
//	for each file of the header:
//	keep    it is the one that the receiver has; or
//	chunk … its bytes               →
//	end     its sum: CRC-32C and CRC-32, 4 each, or for a receiver that knows no other its SHA-256
//	                                  ← answer  the message was passed on, JSON
//
// The sender makes the database's copy after the first answer, so a node that cannot be reached
// costs nothing. It reads a chunk when the connection has taken the one before.
//
// # On the receiver's disk
//
// Files arrive in a directory of their own beside the data. One that is not whole has another
// name. If the connection breaks, those that are whole stay for a while: the next attempt, also
// of another leader, sends only those that differ by name, size or sum.
//
// # Installation
//
// When all files are durable and verified, Install replaces the database in steps, each of which
// may be repeated:
//
//	a file "installing" is made: from here on the new database is the one that counts
//	the old database's files are removed
//	it is renamed to "moving"
//	the new files get their names in the data directory, the manifest's marker last
//	"moving" is removed, then the directory
//
// A start calls Finish, which goes on where the steps were interrupted, before anything reads
// the database.
package snapshot
