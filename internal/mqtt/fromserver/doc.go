// Package fromserver reads what an MQTT server sends: whole packets out of a stream of bytes
// ([Reader]), and structs out of packets ([Packet]). The client and the clients of tests call
// it; the server has the other direction in package transport.
//
// What is returned are views of the reader's buffer, valid until the next packet is read.
// Only a CONNACK is copied. The package sends nothing and knows no session.
package fromserver
