// Package datadir looks after the directory that a server's data is in: the lock that keeps
// other processes out, whether it is still where it was, how much room its disk has, and the file descriptors
// without which its files can't be opened. It knows the names of the files that are not
// the database's, and nothing of what is in any file.
//
// Packages journal, wal and backup use it. None of its functions is on the way of a
// request.
package datadir
