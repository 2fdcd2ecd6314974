// Package raftlog is the Raft log of one node: entries, the node's term and its vote, on
// the write-ahead log of package wal. Package consensus reads it while it runs (it
// implements raft.Storage), and the goroutine that stores entries appends to it.
//
// # Frames
//
// The log has a directory of its own with the segments of package wal and one file more,
// which says that the log exists and holds the segments' mask. What wal calls a batch is a
// record here. All numbers are little-endian:
//
//	term    8  of the node when the record was written
//	vote    8  the node that got its vote in that term; 0: none
//	commit  8  up to here entries were known to be committed
//	kind    1  what follows
//
//	entries:   first 8, then for each entry: term 8, type 1, length 4, data
//	base:      index 8, term 8, record 8: the log begins behind this entry; the next one is in
//	           the record with that number; 0: in none before this record
//	snapshot:  index 8, term 8, 0 8: the state machine is about to be replaced by one that has
//	           this entry and all before it
//	installed: index 8, term 8, 0 8: it was; no entry is left, the log begins behind this one
//
// So the newest record has the node's term and vote, whatever it is about, and one write
// and one fsync make a vote, or several entries, durable.
//
// # Nothing is overwritten
//
// Raft replaces entries that were never committed by those of a newer leader. This package
// appends the new ones, with their old indexes: a start reads the records in order, and a
// record whose first index is not behind the end drops the entries from there on. Files are
// never cut, and wal numbers all records consecutively, so everything that it does to tell
// damage from a torn end holds here as well. A start refuses a record that drops an entry
// known to be committed.
//
// # What is kept
//
// The newest entries are in memory too, up to Options.MemoryBytes, and all that are not
// committed. The others are read back from the files when a follower asks for them: places.go
// says how they are found. Compact drops entries, and the files in which none is left. A start
// has the entries of all files that Compact has left, and holds one file at a time in memory.
// Bytes says how much the entries take in the files; the owner bounds that by Compact.
package raftlog
