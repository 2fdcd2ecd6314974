// Package backup copies data directories and verifies them: a backup of a journal that is
// open, its restore, a check of everything that is in a directory, and the salvage of what
// can be read of a damaged one.
//
// Package server calls it, for the subcommands backup, restore, check and salvage. It never
// writes to the directory that it copies or checks, and knows nothing of what rows mean:
// their owners look at them, in functions that the caller gives.
package backup
