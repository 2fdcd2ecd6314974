// Package wire turns bytes into what every MQTT packet consists of, and back: integers, lengths, strings and
// binary data (MQTT 5, section 1.5). It knows no packet. Package mqtt calls it for each field.
//
// The functions that read take a value from the front of a buffer and say whether it was whole; the value is a view
// of the buffer. The Append functions write to the end of a buffer and return it.
package wire
