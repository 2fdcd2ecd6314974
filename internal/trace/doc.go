// Package trace shows an operator the packets of one client, or the commands on keys that
// match a pattern, each as a line, for a while.
//
// The broker calls Tracer.Packets for each packet and the service Tracer.Commands for each
// command. While nothing is traced that is one atomic load. While something is, it never
// waits: lines that the operator's reader has not taken are bounded in number and length,
// and further ones are counted in place of being kept.
//
// A line has no password, no authentication data and no value of a user property, and of a
// payload only what Filter.Payload asks for.
package trace
