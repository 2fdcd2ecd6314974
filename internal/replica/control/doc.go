// Package control answers what an operator asks a cluster: which of its nodes are there, which
// one leads and how far behind the others are, and to give the leadership away.
//
// A node has a Unix socket in its data directory, which only the directory's owner may use, as
// that of a server; it is there on the leader and on the others. The node asks the others over their cluster
// ports, so a question to any node is answered for all of them. The commands of package
// cli/cluster are the clients of the socket.
package control
