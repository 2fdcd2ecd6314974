// Package conn is one MQTT 5 connection of a client or a session, and the loop that
// makes a new one when it is lost.
//
// [Conn] (conn.go) is a connection from its CONNECT to its end, at QoS 1: a connection of
// package clientconn with what a client's options say. [Acks] (acks.go) acknowledges
// messages in their order after the application has processed them. [Upkeep] (upkeep.go)
// keeps a connection up. [Publish] (publishing.go) sends messages over as many of them as it
// takes.
//
// The package knows neither the state store nor what messages mean.
package conn
