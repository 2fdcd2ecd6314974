// Package wal is the write-ahead log of one machine: batches of rows are appended to files
// in the data directory, one write and one fsync each, and a start reads back those that
// the database had in memory only. It calls a batch by its number, and knows nothing of
// the rows in it.
//
// Package journal drives it, through the interface journal.Log: Read at the start, Replay
// and Begin, then Commit for each batch, and Trim when the database has written tables.
// Package backup reads logs that are damaged (ReadPast).
//
// How a start tells damage from a torn end is told at recoverLog.
//
// # Why it exists
//
// A batch is durable when it is in the log. Pebble has a log of its own, but a batch gets
// into it only together with its way into the memtable, which costs ten times as much (a
// search for each row, through memory that no cache holds), and two goroutines have to be
// woken on the way. So Pebble's is switched off.
//
// # Segments and frames
//
// The log is a row of segments, files named after the number of the first batch in them. A
// segment holds frames:
//
//	sums      8   of all that follows, to the frame's end (see sums)
//	length    4   of the rows
//	number    8   of the batch, masked: one more than that of the frame before
//	unsynced  4   batches, this one and those before, not known to be on the disk by then;
//	              the highest bit: the room ahead is less than usual
//	rows          as Pebble encodes those of a batch
//
// all of it little-endian. The numbers go on from one run of the program to the next. When
// a segment is full the next one begins; and each run begins one.
//
// A file that grows with every write makes every fsync write its length as well. So a
// segment is extended by zeros, 64 KiB to 1 MiB at a time, and one that isn't needed any
// more is used again, under its new name, with what it held. (With batches of 100 KB a
// commit takes 370 µs at the median in place of 618 µs in a new file that is extended; a
// new file that is written with zeros in advance is as fast, and has every byte written
// twice. With batches of 7.5 KB there is no difference.) What is there beyond the last frame
// therefore is zeros, or frames with lower numbers. And there is always something: whenever
// a frame is durable, RoomAhead bytes more are, unless the disk is full, which the next
// frames say. So a file that was cut off is told from one whose last write was torn.
//
// When the next segment has been begun an end frame is put behind the one before: a frame
// without rows and with nothing unsynced, which no other has, and with the number of the
// batch that the next segment begins with. It is no batch, and nothing waits for it; it
// shows that a segment is missing. That there is a log at all is said in the database, in
// the row LoggedKey. From the moment that the database has that row there always is a
// segment.
//
// A start searches what was written behind a damaged place for frames, byte by byte. Rows
// are what clients sent, so rows of a torn batch, or of an old one in a file that is used
// again, could look like frames. So numbers are masked: XORed with 8 random bytes, a
// directory's own, which no client can know. They are in the database, in the row MaskKey.
//
// A segment is not needed any more when the rows of all its batches are in tables. With
// every batch that the database gets it is told up to which number it has them; tables are
// written in order, so what a table says of that row holds for all others.
package wal
