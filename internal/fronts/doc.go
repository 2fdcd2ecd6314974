// Package fronts takes the clients that fronts pass on to the leader of a cluster. A front is a
// program that holds connections of many clients (package front) and carries them over few links,
// each a connection to the cluster's port of the node that leads (package mux).
//
// The node gives the package each such connection, and each server of the node serves the streams
// as connections of its listeners: the client of a stream has come in at the listener with the
// same place at the front, so that what the node's listener says holds for it. Its certificate,
// if it has shown one, is verified here once more; its address is what the front says, which the
// node trusts, as the link is one of a program with a certificate of the cluster's authority.
//
// The front sees to keep-alives; all else of MQTT is the server's matter. When a link ends, so do
// its clients' connections, as if the clients had disappeared.
package fronts
