// Package mqtt turns bytes into MQTT packets and packets into bytes, for MQTT 3.1, 3.1.1 and 5, in both
// directions. The broker calls it for every packet; the Go client, the test clients and the load generator use the
// same code from the other side.
//
// The way of a packet in: [Split] finds the first whole packet in a buffer, then the Decode method of its type
// makes views into the packet's body. Nothing is copied: the struct is valid as long as the buffer is, and the
// caller reuses one struct for many packets. The way of a packet out: the Append functions write to the end of
// a buffer and return it. Decoding and appending allocate nothing beyond growing a reused slice, except where a
// comment says so (CONNACK on the client's side).
//
// Decoding validates all that can be judged from one packet alone. An error is always an [*Error] with the
// reason code that the standard asks for. What needs a session or a setting (is this packet identifier known, is
// the topic alias within bounds, does the payload keep its promised format) is the caller's.
//
// A packet of a few megabytes can have hundreds of thousands of user properties or topic filters. [Bounds], in the
// struct of each packet from a client, say how many of them Decode takes.
//
// Where a packet carries properties, its Raw field is the property block as received, without its length
// prefix: [UserProps] and [FindUserProp] read the user properties from it. The Append functions write the
// properties that have fields of their own from these fields, and take only user properties from Raw.
//
// The package does no I/O, takes no lock, starts no goroutine, and knows neither sessions nor topics' meaning.
package mqtt
