// Package message is an application message in memory: its bytes, who holds it, and
// what it is charged with. The broker's queues and outputs share messages, and count
// their references.
//
// A [Message] stays as it is; [Outgoing] is a message on its way through routing, of
// which a Message is made only if a queue must keep it.
package message
