// Package rows is what the broker keeps on disk: the keys of its rows and their
// forms, bytes ⇄ structs. The writers, the loader and [Check] share it.
//
// It knows neither sessions nor messages in memory, and writes nothing.
package rows
