// Package keys has the commands that use the state store: get, set, del, vdel, scan and
// watch. They reach the server through package connect and speak to it through package
// client.
package keys
