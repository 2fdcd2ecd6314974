// Package bridge connects this broker with another one: messages that are published at one
// of them and match a rule are published at the other as well.
//
// A [Link] has two MQTT connections, each with an MQTT session that does not end: one to
// this broker and one to the other. It keeps nothing itself. It passes each PUBLISH on with
// the packet identifier that it came with, and each acknowledgement back:
//
//	this broker                link                other broker
//	     PUBLISH 7, QoS 2  →        → PUBLISH 7
//	              PUBREC 7 ←        ← PUBREC 7
//	              PUBREL 7 →        → PUBREL 7
//	             PUBCOMP 7 ←        ← PUBCOMP 7
//
// So the two sessions agree at every moment on what is under way, also after either broker
// or the link has been killed: the sender's session sends again what was not acknowledged, under the
// same identifier, and the receiver's session recognizes it. A message at QoS 2 passes once, and one
// at QoS 1 at least once. While the other broker is away, messages wait in the link's session
// at this broker, under its bounds.
//
// It knows MQTT packets, and of the server only how to connect to it.
package bridge
