package statestore

// Fault is a reason to refuse a command, one for each error text of the
// protocol, section 6. The zero value, None, is no fault.
type Fault uint8

const (
	None Fault = iota
	TimestampAhead
	TokenRequired
	TokenAhead
	TokenTooLow
	QuotaExceeded
	Syntax
	NotAuthorized
	UnknownCommand
	WrongArgumentCount
	MissingTimestamp
	MalformedTimestamp
	EmptyKey
	MalformedToken
	// Unreadable: the command had to read the disk, which failed. Nothing was changed.
	// Only SCAN, LOAD, STORE and DONE read the disk, and those are extensions.
	Unreadable
	// PageTooLarge: a key and the token that follows it don't fit in a packet that the
	// client takes. It is SCAN's, hence ours.
	PageTooLarge
	// Those of TXN, which name an operation (Reply.Op).
	UnknownOperation
	SameKey // two conditions or two writes of one transaction have the same key
	InvalidTopic
	ReservedTopic
	InvalidProperty
	NotAsFormatted
	QueueFull
	NotUnderWay
	SettledTwice // by two operations of one transaction
	OtherDigest  // the message of ONCE is remembered with another digest
	TimerTwice   // two operations of one transaction set or cancel the timer
)

var faultTexts = [...]string{
	None:               "no fault",
	TimestampAhead:     "the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized",
	TokenRequired:      "a fencing token is required for this request",
	TokenAhead:         "the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized",
	TokenTooLow:        "the request fencing token is a lower version than the fencing token protecting the resource",
	QuotaExceeded:      "the quota has been exceeded",
	Syntax:             "syntax error",
	NotAuthorized:      "not authorized",
	UnknownCommand:     "unknown command",
	WrongArgumentCount: "wrong number of arguments",
	MissingTimestamp:   "missing timestamp",
	MalformedTimestamp: "malformed timestamp",
	EmptyKey:           "the key length is zero",
	MalformedToken:     "malformed token",
	Unreadable:         "the store cannot read its disk",
	PageTooLarge:       "a key is too long for the maximum packet size of the client",
	UnknownOperation:   "unknown operation",
	SameKey:            "an earlier operation of this kind has the same key",
	InvalidTopic:       "the topic name is invalid",
	ReservedTopic:      "the topic is reserved",
	InvalidProperty:    "a property of the message is invalid",
	NotAsFormatted:     "the payload is not UTF-8 as its format says",
	QueueFull:          "the queue of a subscriber is full",
	NotUnderWay:        "no message with this packet identifier is under way",
	SettledTwice:       "an earlier operation settles the same message",
	OtherDigest:        "the message is remembered with another digest",
	TimerTwice:         "an earlier operation has the same timer",
}

// tokenTooLowDocumented is TokenTooLow as the documents spell it.
const tokenTooLowDocumented = "the request fencing token is a lower version that the fencing token protecting the resource"

// Text returns the exact text that goes over the wire after "-ERR ". documented
// selects the wire form of the documents, which differs for TokenTooLow only.
func (f Fault) Text(documented bool) string {
	switch {
	case documented && f == TokenTooLow:
		return tokenTooLowDocumented
	case int(f) < len(faultTexts):
		return faultTexts[f]
	default:
		return "unknown fault"
	}
}

// Error returns Text(false). A Fault is an error for tests and logs; None must
// not be returned as one.
func (f Fault) Error() string { return f.Text(false) }

// FaultOf returns the fault whose text, in either wire form, is given.
func FaultOf(text string) (f Fault, ok bool) {
	if text == tokenTooLowDocumented {
		return TokenTooLow, true
	}
	for f := TimestampAhead; int(f) < len(faultTexts); f++ {
		if faultTexts[f] == text {
			return f, true
		}
	}
	return None, false
}
