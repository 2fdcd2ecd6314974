// Package table keeps keys in memory: an index that finds a key's record, the records with
// key, value, version, fencing token and deadline, and the order of their deadlines.
//
// The engine has a table for each of its shards, under the shard's lock. The table decides
// nothing: it neither looks at a clock nor knows what a batch or an owner is, of which a
// record carries the number.
package table
