// Package wal is the write-ahead log of one machine: it appends batches of rows to files
// in the data directory, with one write and one fsync for each batch. A start reads back
// the batches that the database had in memory only. The package identifies a batch by its
// number, and does not look at the rows in it.
//
// Package journal calls it through the interface journal.Log: Read at the start, Replay
// and Begin, then Commit for each batch, and Trim when the database has written tables.
// Package backup reads damaged logs (ReadPast).
//
// The comment of recoverLog says how a start tells damage from a torn end.
//
// # Why it exists
//
// A batch is durable when it is in the log. Pebble has a log of its own, but writes a batch
// to it only together with the batch's insertion into the memtable. The insertion costs ten
// times as much as the log (a search for each row, in memory that is in no processor
// cache), and wakes two more goroutines. So Pebble's log is switched off.
//
// # Segments and frames
//
// The log is a sequence of segments: files named after the number of the first batch in
// them. A segment holds frames:
//
//	sums      8   of everything that follows in the frame (see sums)
//	length    4   of the rows
//	number    8   of the batch, masked: one more than that of the frame before
//	unsynced  4   how many batches, this one included, were not known to be on the disk when the frame was made;
//	              the highest bit: the room ahead is less than usual
//	rows          as Pebble encodes those of a batch
//
// All numbers are little-endian. The numbers of batches continue from one run of the
// program to the next. When a segment is full, the next one begins; each run begins one,
// too.
//
// If every write made the file longer, every fsync would have to write the new length as
// well. So a segment is extended ahead of time with zeros, 64 KiB to 1 MiB at once, and a
// segment that is no longer needed is used again, under a new name and with its old content
// (docs/performance.md has the figures). Behind the last frame of a segment there are
// therefore zeros, or frames with lower numbers. There is always something: whenever a
// frame is durable, RoomAhead bytes behind it are in the file, unless the disk is full, and
// then the next frames say so. That is how a start tells a file that was cut short from one
// whose last write was torn.
//
// The next segment begins when one is full, and at a stop. Then an end frame is written to
// the one before: a frame without rows whose field unsynced is 0, which it is in no other
// frame, and with the number of the first batch of the next segment. It is not a batch, and
// no goroutine waits for it. It shows when a segment is missing. What the next segment's name
// shows is that all batches before it were on the disk. The row LoggedKey in the database says that there is a
// log at all; once the database has that row, there is always a segment.
//
// Behind a damaged place, a start searches for frames, byte by byte. Rows contain what
// clients have sent, so the rows of a torn batch, or of an old one in a reused file, could
// look like frames. Therefore the numbers in frames are masked: XORed with 8 random bytes of
// the data directory, which no client knows. The row MaskKey in the database holds them.
//
// A segment is no longer needed when tables have the rows of all its batches. Each batch
// that the database gets includes a row with the batch's number. The database writes tables
// in order, so the newest such row in a table says up to which batch all rows are in tables.
package wal
