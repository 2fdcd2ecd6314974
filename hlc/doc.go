// Package hlc is the hybrid logical clock that the state store's versions and
// fencing tokens are made of (protocol, section 4): the Timestamp with its text
// form and its order, the rule by which the next one is issued, and the Clock
// that a client stamps its requests with.
//
// The store's rules, the wire format and the client all call it. It never reads
// a clock itself, except in [Clock], and never blocks.
package hlc
