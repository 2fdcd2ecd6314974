// Package messages has the commands pub and sub. They use any QoS and work with any MQTT 5
// server, on connections of their own: package client has QoS 1 and what programs need.
package messages
