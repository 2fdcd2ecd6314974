// Package mosquitto makes a configuration of Holdfast of one of Mosquitto 2.0 (mosquitto.conf): its
// listeners, TLS, password file, access control list, limits and bridges. It says of each line that
// has no counterpart why.
//
// What it makes lets clients do no more than Mosquitto did, but for what deny lines of the access
// control list took away, which are named: a listener whose rules Holdfast cannot keep is left out.
//
// The command import-mosquitto calls it. It writes no files, and starts nothing.
package mosquitto
