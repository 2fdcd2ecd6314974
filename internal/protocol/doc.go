// Package protocol is the wire of the state store: the RESP3 payloads of requests,
// replies and notifications, the names of topics and properties in both dialects,
// and the two wire forms (protocol, sections 1, 3 and 6). It turns a payload into
// a [statestore.Command] and a [statestore.Reply] or [statestore.Event] into a
// payload; the other way round it serves the client.
//
// The service calls it for the store, the client and the command line for the
// other side. It knows nothing of MQTT packets, decides nothing that the rules
// decide, and allocates nothing by a length that is merely claimed.
package protocol
