package client

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

func TestSetCommand(t *testing.T) {
	t.Parallel()
	version := hlc.Timestamp{Wall: 5, Counter: 6, Node: "n"}
	for _, test := range []struct {
		name string
		opts []SetOption
		want string
	}{
		{"plain", nil, "SET k v"},
		{"absent", []SetOption{IfAbsent()}, "SET k v NX"},
		{"NEX comes first, whatever the order", []SetOption{Expiry(time.Second), IfAbsentOrEqual()}, "SET k v NEX PX 1000"},
		{"NEX with an operand", []SetOption{IfVersion(version), IfAbsentOrValue([]byte("o")), Expiry(time.Second)}, "SET k v NEX o PX 1000 VER 5:6:n"},
		{"the zero version", []SetOption{IfVersion(hlc.Timestamp{})}, "SET k v VER -"},
		{"expiry rounds up", []SetOption{Expiry(time.Nanosecond)}, "SET k v PX 1"},
		{"expiry is exact", []SetOption{Expiry(1500 * time.Millisecond)}, "SET k v PX 1500"},
	} {
		var a setArgs
		for _, o := range test.opts {
			o.applySet(&a)
		}
		if got := string(bytes.Join(a.command("k", []byte("v")), []byte(" "))); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// Each text of the protocol, in both wire forms, is its own sentinel.
func TestEveryErrorTextHasItsSentinel(t *testing.T) {
	t.Parallel()
	for fault, want := range map[statestore.Fault]error{
		statestore.TimestampAhead:     ErrTimestampAhead,
		statestore.TokenRequired:      ErrTokenRequired,
		statestore.TokenAhead:         ErrTokenAhead,
		statestore.TokenTooLow:        ErrTokenTooLow,
		statestore.QuotaExceeded:      ErrQuotaExceeded,
		statestore.Syntax:             ErrSyntax,
		statestore.NotAuthorized:      ErrNotAuthorized,
		statestore.UnknownCommand:     ErrUnknownCommand,
		statestore.WrongArgumentCount: ErrWrongArgumentCount,
		statestore.MissingTimestamp:   ErrMissingTimestamp,
		statestore.MalformedTimestamp: ErrMalformedTimestamp,
		statestore.EmptyKey:           ErrEmptyKey,
		statestore.MalformedToken:     ErrMalformedToken,
		statestore.Unreadable:         ErrUnreadable,
		statestore.PageTooLarge:       ErrPageTooLarge,
	} {
		for _, documented := range []bool{false, true} {
			r, err := protocol.ParseReply([]byte("-ERR " + fault.Text(documented) + "\r\n"))
			if err != nil {
				t.Fatal(err)
			}
			if got := toStoreError(&r); !errors.Is(got, want) {
				t.Errorf("%q: %v, want %v", fault.Text(documented), got, want)
			}
		}
	}
	r, _ := protocol.ParseReply([]byte("-ERR something new\r\n"))
	if got := toStoreError(&r); got.Error() != "something new" || errors.Is(got, ErrSyntax) {
		t.Errorf("a text that we don't know: %v", got)
	}
}

func TestRejectedErrorIsItsSentinel(t *testing.T) {
	t.Parallel()
	err := error(&Error{Op: "get", Key: "k", Err: &RejectedError{Code: 0x87, Reason: "no"}})
	if !errors.Is(err, ErrNotAuthorized) || errors.Is(err, ErrQuotaExceeded) {
		t.Errorf("0x87: %v", err)
	}
	if want := `get "k": the server rejected the request: not authorized (0x87): no`; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	if !errors.Is(&RejectedError{Code: 0x97}, ErrQuotaExceeded) {
		t.Error("0x97 is not ErrQuotaExceeded")
	}
}

func TestConfigChecks(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Option{
		"wildcard in the ID": WithClientID("a+b"),
		"NUL in the ID":      WithClientID("a\x00"),
		"ID not UTF-8":       WithClientID("\xff"),
		"no timeout":         WithTimeout(0),
		"keep-alive":         WithKeepAlive(time.Millisecond),
		"backoff":            WithBackoff(2, 1),
	} {
		if _, err := New("localhost", o); !errors.Is(err, ErrInvalidOption) {
			t.Errorf("%s: %v, want ErrInvalidOption", name, err)
		}
	}
	if _, err := New("ftp://h"); !errors.Is(err, ErrInvalidOption) {
		t.Errorf("an address that makes no sense: %v, want ErrInvalidOption", err)
	}
	if got := nodeID("a:b"); got != "a-b" {
		t.Errorf("node ID %q: a colon would make the timestamp malformed", got)
	}
}

func TestReasonCodes(t *testing.T) {
	t.Parallel()
	for code, want := range map[ReasonCode]string{
		ReasonNotAuthorized: "not authorized (0x87)", ReasonCode(0xFF): "reason code (0xFF)",
	} {
		if got := code.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for err, want := range map[error]error{
		&ConnectError{Code: ReasonNotAuthorized}:   ErrNotAuthorized,
		&RejectedError{Code: ReasonPacketTooLarge}: ErrTooLarge,
		&RejectedError{Code: ReasonQuotaExceeded}:  ErrQuotaExceeded,
	} {
		if !errors.Is(err, want) || errors.Is(err, ErrSyntax) {
			t.Errorf("%v is not %v", err, want)
		}
	}
	if want := "the server disconnected: session taken over: another client uses the same client ID (0x8E): bye"; (&DisconnectError{ReasonSessionTakenOver, "bye"}).Error() != want {
		t.Errorf("%v, want %v", &DisconnectError{ReasonSessionTakenOver, "bye"}, want)
	}
}
