// Package console is the web page of a server: its files, which are part of the program, and
// the WebSocket by which the page is an MQTT client of the server that serves it. So the page
// signs in as every client does, and may do what the policy lets its principal do.
//
// The server package makes both and hands them to the admin listener. The package knows
// nothing of MQTT, and asks no client who it is: the broker does.
package console
