// Package secure has the commands that set up a server that only its clients reach: init
// makes a directory with everything that such a server needs, and cert makes and revokes
// single certificates.
package secure
