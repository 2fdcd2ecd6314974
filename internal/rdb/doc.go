// Package rdb reads the dump files of Redis (RDB), as SAVE and redis-cli --rdb write them: the
// keys with their strings and expiry. Of keys of other types it gives name and type, and reads
// over what they hold.
//
// It knows the versions of the format up to 12 (Redis 7.4) and the types that they have. A file of a
// later version is read as long as it has no type and no opcode that the package does not know.
package rdb
