// Package slab keeps small records in memory that Go's collector neither scans
// nor counts, and finds them by a hash.
//
// The engine keeps its keys with it: millions of records of some hundred bytes.
// On the Go heap each record would take several objects, their rounding and pointers to
// them, and twice that in all, since the collector lets the heap grow to twice its live
// size. Here a record takes its bytes rounded up to a size class, and its share of an
// index.
//
// [Memory] has the memory from the operating system, in chunks. [Slots] lays out
// records in chunks; [Index] finds them. Each shard of the engine has its own Slots
// and Index, under its lock; all share one Memory, which has a lock of its own that
// is held for a few instructions.
//
// # Slots
//
// A record has the size class that fits it: 32 bytes and then every 8 up to 256,
// from there on eight classes between a power of two and the next, up to MaxSize.
// So no more than an eighth is lost by rounding. Larger records are not for this package.
// The records of one class fill chunks of 64 KiB without a gap:
//
//	class of 120 bytes     chunk 0                chunk 1
//	                       ┌──┬──┬──┬── ⋯ ──┬──┐  ┌──┬──┬──┬───────────
//	                       │ 0│ 1│ 2│       │545│ │ 0│ 1│ 2│ not touched
//	                       └──┴──┴──┴── ⋯ ──┴──┘  └──┴──┴──┴───────────
//	                             ▲                        │
//	                             └──── Free(1 of 0) ◀─────┘ the last one moves into the hole
//
// When a record is freed, the last one of its class moves into its place, so memory is
// never fragmented: what is in use is what the present records need. An empty chunk goes
// back to Memory, which gives its pages back to the system. The price is that a record
// may move when another is freed. Free reports this, and the caller then updates what
// refers to the record. A [Ref] is therefore good only
// until the next Free of the same Slots.
//
// A record that is overwritten by one of the same class stays where it is.
//
// # Index
//
// Open addressing in one array of 8-byte words, each a Ref and 24 bits of the hash:
//
//	 63     40 39      18 17       7 6      0
//	┌─────────┬──────────┬──────────┬────────┐
//	│  hash   │  chunk   │   slot   │ class  │   0: free
//	└─────────┴──────────┴──────────┴────────┘
//
// A record's place is its hash scaled to the length of the array, or the next free
// word; a hash that differs saves a look at the record. Taking one out moves up
// those that it had displaced, so there are no tombstones. At most 4 of 5 words are
// used; then the array grows by a quarter, in one pass from left to right, as
// scaling keeps the order. That is 10 to 12.5 bytes for each record.
//
// # Bounds
//
// A Ref has room for 2^22 chunks of each class in one Slots: 256 GiB. An index is
// made for up to 2^24 records; with more it is still right, but slower.
//
// A record of the engine with a key of 32 bytes and a value of 64 has 24 bytes of
// its own: it takes a slot of 120 bytes and at most 12.5 bytes of the index.
package slab
