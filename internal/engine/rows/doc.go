// Package rows is how the engine's data stands on disk: the rows of keys, of remembered
// messages (memos), of the index of their deadlines, and the meta record. The engine writes
// and loads them, Check and Repair read them in a data directory that no server uses; all
// with the same encoding.
package rows
