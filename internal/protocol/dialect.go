package protocol

import "fmt"

// The topics of protocol, sections 1 and 6. NotifyPrefix is without a slash at
// its end: nothing that begins with it may be a response topic.
const (
	InvokeTopic        = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
	PreviewInvokeTopic = "$services/statestore/_any_/command/invoke/request"
	NotifyPrefix       = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
)

// What responses and notifications carry besides their payload (protocol,
// section 6).
const (
	ContentType             = "application/octet-stream"
	ProtocolVersion         = "1.0"
	StatusOK                = "200" // for -ERR too: SDKs insist on it
	StatusProperty          = "__stat"
	ProtocolVersionProperty = "__protVer"
	SourceProperty          = "__srcId"
	// QuotaProperty names the setting whose bound a quota error is about, for example
	// "max-keys". It is ours, and on such errors only.
	QuotaProperty = "holdfast-quota"
	// KeepProperty says for how many milliseconds a message is remembered, if the STORE or
	// TXN has asked for another time. It is ours.
	KeepProperty = "holdfast-keep"
	// ServerTimeProperty is the server's wall clock in ms since 1970. It is ours, and on
	// errors about a timestamp that is ahead of it only.
	ServerTimeProperty = "holdfast-time"
)

// The properties of the current dialect; those of the preview are in its Dialect.
const (
	TimeProperty  = "__ts"
	TokenProperty = "__ft"
)

// Dialect is one of the two ways of speaking to the store (protocol, section 1).
type Dialect struct {
	Name          string
	Topic         string // requests are published to it
	TimeProperty  string // the version of a request, response or notification
	TokenProperty string // the fencing token of a request

	// Current tells the dialect of today, which has all commands and puts
	// StatusProperty and ProtocolVersionProperty on its responses, from the
	// preview of 2023, which has SET, GET, DEL and VDEL and neither property.
	Current bool
}

// The two dialects. They are not to be written to.
var (
	Current = &Dialect{
		Name:          "current",
		Topic:         InvokeTopic,
		TimeProperty:  TimeProperty,
		TokenProperty: TokenProperty,
		Current:       true,
	}
	Preview = &Dialect{
		Name:          "preview",
		Topic:         PreviewInvokeTopic,
		TimeProperty:  "Timestamp",
		TokenProperty: "FencingToken",
	}
)

// Wire is one of the two wire forms (protocol, section 6). The zero value is SDK.
type Wire uint8

const (
	SDK        Wire = iota // what every SDK needs
	Documented             // to the letter of the documents
)

// ParseWire reads the --wire setting: "sdk" or "documented".
func ParseWire(s string) (Wire, error) {
	switch s {
	case "sdk":
		return SDK, nil
	case "documented":
		return Documented, nil
	}
	return SDK, fmt.Errorf(`unknown wire form %q: it is "sdk", what every SDK needs, or "documented", to the letter of the documents`, s)
}

// String returns the text that ParseWire reads.
func (w Wire) String() string {
	if w == Documented {
		return "documented"
	}
	return "sdk"
}
