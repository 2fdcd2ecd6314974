package mqtt

import "github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"

// Bounds limit the parts of a packet that cost the receiver time or memory for a few bytes each. The caller sets
// them in the struct that it decodes a packet to; Decode keeps them. Decode counts these parts before it processes
// them, stops counting at the bound, and returns QuotaExceeded beyond it.
type Bounds struct {
	UserProps int // user properties, those of a CONNECT's will included; 0: any number
	Filters   int // topic filters of a SUBSCRIBE or UNSUBSCRIBE; 0: any number
}

// userPropsLeft counts how many user properties a packet may still have. Without a bound it is below zero.
func (b *Bounds) userPropsLeft() int {
	if b.UserProps == 0 {
		return -1
	}
	return b.UserProps
}

// countFilters counts the topic filters in what follows the property block of a SUBSCRIBE, which has options
// bytes after each filter, or of an UNSUBSCRIBE, which has none. A filter that is cut short is counted, too.
func (b *Bounds) countFilters(rest []byte, options int) (n int, err *Error) {
	for i := 0; i >= 0 && i < len(rest); n++ {
		if n == b.Filters && n > 0 {
			return 0, errFilters
		}
		if i = wire.TextEnd(rest, i); i >= 0 {
			i += options
		}
	}
	return n, nil
}
