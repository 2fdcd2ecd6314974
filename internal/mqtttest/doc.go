// Package mqtttest is an MQTT client for tests, on a real socket, that does
// exactly what it is told and nothing else.
//
// A client library hides what a broker's test must see: it acknowledges on its
// own, reorders, reconnects, and cannot send a broken packet. A [Client] here
// has one socket and no goroutine. It reads only when the test asks for a
// packet, so a test that wants a stalled subscriber simply doesn't ask; it
// acknowledges what it hands out unless [HoldAcks] says otherwise; and
// [Client.Write] sends any bytes at all.
//
// Nothing waits by sleeping. A packet that must come is awaited with a deadline
// ([Client.Next], [Client.Receive], [Client.Await]); that nothing comes is shown by a fence: a PINGREQ whose
// PINGRESP must be the next packet ([Client.Quiet]).
//
// The tests of the broker and of the state store call it. It uses the codec of
// internal/mqtt, whose own tests are byte vectors, and knows nothing of the
// broker. It is never part of the program.
package mqtttest
