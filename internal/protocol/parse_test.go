package protocol_test

import (
	"math"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// resp is the payload of a request with these arguments.
func resp(args ...string) []byte {
	blobs := make([][]byte, len(args))
	for i, arg := range args {
		blobs[i] = []byte(arg)
	}
	return protocol.AppendCommand(nil, blobs...)
}

// words makes a payload of a command as one writes it down.
func words(command string) []byte { return resp(strings.Fields(command)...) }

func parse(payload []byte) (statestore.Command, statestore.Fault) {
	// What a parser leaves of the command before must not be seen.
	cmd := statestore.Command{
		Verb: 99, Condition: statestore.IfAbsentOrEqual, Stop: true, HasToken: true, Denied: true,
		Key: []byte("old"), Value: []byte("old"), Compare: []byte("old"), ExpiryMs: 99,
		Version: statestore.VersionCheck{Given: true, Absent: true},
		Message: []byte("old"), Context: []byte("old"), KeepMs: 99,
		Time: statestore.Stamp{State: statestore.Given}, Token: statestore.Stamp{State: statestore.Malformed},
	}
	f := protocol.Parse(payload, protocol.Current, protocol.DefaultMaxKey, &cmd)
	return cmd, f
}

// malformedPayloads are those that protocol, section 3, calls a syntax error
// because of their form.
var malformedPayloads = []struct{ name, payload string }{
	{"nothing", ""},
	{"no array", "GET key\r\n"},
	{"an empty array", "*0\r\n"},
	{"truncated in the count", "*2"},
	{"truncated after the count", "*2\r\n"},
	{"truncated in a length", "*2\r\n$3\r\nGET\r\n$"},
	{"truncated in a blob", "*2\r\n$3\r\nGET\r\n$3\r\nke"},
	{"truncated before the last line's end", "*2\r\n$3\r\nGET\r\n$3\r\nkey"},
	{"truncated in the last line's end", "*2\r\n$3\r\nGET\r\n$3\r\nkey\r"},
	{"an argument missing", "*3\r\n$3\r\nGET\r\n$3\r\nkey\r\n"},
	{"trailing bytes", "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n\r\n"},
	{"a trailing argument", "*1\r\n$3\r\nGET\r\n$3\r\nkey\r\n"},
	{"wrong type byte of the array", "$2\r\n$3\r\nGET\r\n$3\r\nkey\r\n"},
	{"wrong type byte of an argument", "*2\r\n+GET\r\n$3\r\nkey\r\n"},
	{"a number as an argument", "*2\r\n$3\r\nGET\r\n:3\r\n"},
	{"an array as an argument", "*2\r\n$3\r\nGET\r\n*0\r\n"},
	{"negative count", "*-1\r\n"},
	{"negative length", "*2\r\n$3\r\nGET\r\n$-1\r\n"},
	{"overflowing count", "*18446744073709551618\r\n$3\r\nGET\r\n$3\r\nkey\r\n"},
	{"overflowing length", "*2\r\n$3\r\nGET\r\n$18446744073709551619\r\nkey\r\n"},
	{"the largest length", "*2\r\n$3\r\nGET\r\n$9223372036854775807\r\nkey\r\n"},
	{"non-digit in the count", "*2x\r\n$3\r\nGET\r\n$3\r\nkey\r\n"},
	{"non-digit in a length", "*2\r\n$3 \r\nGET\r\n$3\r\nkey\r\n"},
	{"a sign", "*2\r\n$+3\r\nGET\r\n$3\r\nkey\r\n"},
	{"no count", "*\r\n$3\r\nGET\r\n$3\r\nkey\r\n"},
	{"no length", "*2\r\n$\r\nGET\r\n$3\r\nkey\r\n"},
	{"length too short", "*2\r\n$3\r\nGET\r\n$2\r\nkey\r\n"},
	{"length too long", "*2\r\n$3\r\nGET\r\n$4\r\nkey\r\n"},
	{"only LF", "*2\n$3\nGET\n$3\nkey\n"},
	{"only CR", "*2\r$3\rGET\r$3\rkey\r"},
	{"the form comes before the verb", "*2\r\n$4\r\nNOPE\r\n$4\r\nkey\r\n"},
	{"the form comes before the count", "*1\r\n$3\r\nGET\r\nx"},
	{"the form of the last of many arguments", string(resp("GET", "k", "1", "2", "3", "4", "5", "6", "7", "8", "9")) + "x"},
}

func TestSection3PayloadForm(t *testing.T) {
	t.Parallel()
	for _, tc := range malformedPayloads {
		if _, f := parse([]byte(tc.payload)); f != statestore.Syntax {
			t.Errorf("%s: %q: %v", tc.name, tc.payload, f)
		}
	}
}

// Every payload that is cut off anywhere is malformed.
func TestSection3TruncatedPayload(t *testing.T) {
	t.Parallel()
	whole := words("SET key value NEX compare PX 100 VER 1:2:n")
	for n := range whole {
		if _, f := parse(whole[:n]); f != statestore.Syntax {
			t.Errorf("%q: %v", whole[:n], f)
		}
	}
	if _, f := parse(whole); f != statestore.None {
		t.Errorf("%q: %v", whole, f)
	}
}

// The payloads of the documents, which are in lower case.
func TestSection3DocumentedPayloads(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]statestore.Command{
		"*3\r\n$3\r\nset\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n": {Verb: statestore.Set, Key: []byte("SETKEY2"), Value: []byte("VALUE5")},
		"*2\r\n$3\r\nget\r\n$7\r\nSETKEY2\r\n":                 {Verb: statestore.Get, Key: []byte("SETKEY2")},
		"*2\r\n$3\r\ndel\r\n$7\r\nSETKEY2\r\n":                 {Verb: statestore.Del, Key: []byte("SETKEY2")},
		"*3\r\n$4\r\nvdel\r\n$7\r\nSETKEY2\r\n$3\r\nABC\r\n":   {Verb: statestore.VDel, Key: []byte("SETKEY2"), Value: []byte("ABC")},
		"*2\r\n$9\r\nKEYNOTIFY\r\n$7\r\nSOMEKEY\r\n":           {Verb: statestore.KeyNotify, Key: []byte("SOMEKEY")},
	} {
		got, f := parse([]byte(payload))
		if f != statestore.None || differ(got, want) != "" {
			t.Errorf("%q: %v, differs in %s", payload, f, differ(got, want))
		}
	}
}

// differ names the first field in which two commands differ.
func differ(a, b statestore.Command) string {
	switch {
	case a.Verb != b.Verb:
		return "Verb"
	case string(a.Key) != string(b.Key):
		return "Key"
	case string(a.Value) != string(b.Value):
		return "Value"
	case a.Condition != b.Condition:
		return "Condition"
	case string(a.Compare) != string(b.Compare):
		return "Compare"
	case a.ExpiryMs != b.ExpiryMs:
		return "ExpiryMs"
	case a.Version != b.Version:
		return "Version"
	case string(a.Message) != string(b.Message):
		return "Message"
	case string(a.Context) != string(b.Context) || (a.Context == nil) != (b.Context == nil):
		return "Context"
	case a.Remove != b.Remove:
		return "Remove"
	case a.KeepMs != b.KeepMs:
		return "KeepMs"
	case a.Stop != b.Stop:
		return "Stop"
	case a.HasToken != b.HasToken:
		return "HasToken"
	case a.Time != b.Time || a.Token != b.Token || a.Denied != b.Denied:
		return "what isn't in the payload"
	}
	return ""
}

func TestSection3AnyCaseIsAccepted(t *testing.T) {
	t.Parallel()
	for _, command := range []string{
		"gEt key", "Set key value nX", "SET key value nex other pX 5 vEr -", "DeL key", "vDEL key value",
		"keyNotify key stop gEt", "sCAN *", "lOad key id", "sToRe key state id - cTx blob KeeP 5", "donE key id", "done key id VeR 1:2:a cTx b", "store key state id - pX 5", "store key state id - dEl keep 5",
	} {
		if _, f := parse(words(command)); f != statestore.None {
			t.Errorf("%s: %v", command, f)
		}
	}
	// What differs from a letter in other bits than its case's, or folds to one
	// in Unicode, is another word.
	for _, verb := range []string{"", "G", "GETS", "G\x05T", "ge\x54\x00", "\x47\x45\x14", "\u212aEYNOTIFY", "KEYNOTIF", "ſet", "@@@"} {
		if _, f := parse(resp(verb, "key")); f != statestore.UnknownCommand {
			t.Errorf("verb %q: %v", verb, f)
		}
	}
}

func TestSection3Values(t *testing.T) {
	t.Parallel()
	t.Run("keys and values are arbitrary bytes", func(t *testing.T) {
		t.Parallel()
		cmd, f := parse(resp("SET", "\x00\r\n$3\r\n", "\xff\r\n*1\r\n"))
		if f != statestore.None || string(cmd.Key) != "\x00\r\n$3\r\n" || string(cmd.Value) != "\xff\r\n*1\r\n" {
			t.Errorf("%v: key %q, value %q", f, cmd.Key, cmd.Value)
		}
	})
	t.Run("an empty value is a value", func(t *testing.T) {
		t.Parallel()
		if cmd, f := parse(resp("SET", "k", "")); f != statestore.None || cmd.Value == nil || len(cmd.Value) != 0 {
			t.Errorf("%v: value %v", f, cmd.Value)
		}
		if _, f := parse(resp("VDEL", "k", "")); f != statestore.None {
			t.Error(f)
		}
	})
	t.Run("an empty key is an error", func(t *testing.T) {
		t.Parallel()
		for _, payload := range [][]byte{
			resp("SET", "", "v"), resp("GET", ""), resp("DEL", ""), resp("VDEL", "", "v"), resp("KEYNOTIFY", ""),
		} {
			if _, f := parse(payload); f != statestore.EmptyKey {
				t.Errorf("%q: %v", payload, f)
			}
		}
	})
	t.Run("views of the payload, not copies", func(t *testing.T) {
		t.Parallel()
		payload := words("SET key value NEX other")
		cmd, _ := parse(payload)
		for i := range payload {
			payload[i] = 'w'
		}
		if string(cmd.Key) != "www" || string(cmd.Value) != "wwwww" || string(cmd.Compare) != "wwwww" {
			t.Errorf("a copy was made: %q %q %q", cmd.Key, cmd.Value, cmd.Compare)
		}
		if got := string(append(cmd.Key, "tail"...)); got != "wwwtail" || strings.Contains(string(payload), "t") {
			t.Errorf("appending to a view wrote into the payload: %q", payload)
		}
	})
}

// setOptions are SETs of "key value" with these options.
var setOptions = []struct {
	rule    string
	options string
	want    statestore.Command
}{
	{"no options", "", statestore.Command{}},
	{"NX", "NX", statestore.Command{Condition: statestore.IfAbsent}},
	{"NEX alone compares with the new value", "NEX", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("value")}},
	{"NEX compare", "NEX other", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("other")}},
	{"PX", "PX 10000", statestore.Command{ExpiryMs: 10000}},
	{"VER", "VER 01696374425000:0001:StateStore", statestore.Command{Version: statestore.VersionCheck{Given: true, At: hlc.Timestamp{Wall: 1696374425000, Counter: 1, Node: "StateStore"}}}},
	{"VER - is no such key", "VER -", statestore.Command{Version: statestore.VersionCheck{Given: true, Absent: true}}},
	{"any order: PX NX", "PX 5 NX", statestore.Command{Condition: statestore.IfAbsent, ExpiryMs: 5}},
	{"any order: NX PX", "NX PX 5", statestore.Command{Condition: statestore.IfAbsent, ExpiryMs: 5}},
	{"any order: VER PX NEX", "VER - PX 5 NEX", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("value"), ExpiryMs: 5, Version: statestore.VersionCheck{Given: true, Absent: true}}},
	{"all of them", "PX 5 NEX other VER -", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("other"), ExpiryMs: 5, Version: statestore.VersionCheck{Given: true, Absent: true}}},

	// If the number of arguments after NEX is odd, the first of them is its
	// operand, whatever its text.
	{"NEX with 2 after it has no operand", "NEX PX 5", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("value"), ExpiryMs: 5}},
	{"NEX with 3 after it has one", "NEX other PX 5", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("other"), ExpiryMs: 5}},
	{"NEX with 4 after it has none", "NEX PX 5 VER -", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("value"), ExpiryMs: 5, Version: statestore.VersionCheck{Given: true, Absent: true}}},
	{"NEX with 5 after it has one", "NEX other PX 5 VER -", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("other"), ExpiryMs: 5, Version: statestore.VersionCheck{Given: true, Absent: true}}},
	{"the operand PX", "NEX PX", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("PX")}},
	{"the operand PX before PX", "NEX PX PX 5", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("PX"), ExpiryMs: 5}},
	{"the operand VER", "PX 5 NEX VER", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("VER"), ExpiryMs: 5}},
	{"the operand NX", "NEX NX", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("NX")}},
	{"the operand NEX", "NEX NEX", statestore.Command{Condition: statestore.IfAbsentOrEqual, Compare: []byte("NEX")}},

	// A positive decimal number of milliseconds; a fraction is rounded up.
	{"a fraction with a point", "PX 1500.2", statestore.Command{ExpiryMs: 1501}},
	{"a fraction with a comma", "PX 1500,2", statestore.Command{ExpiryMs: 1501}},
	{"a fraction of nothing", "PX 1500.000", statestore.Command{ExpiryMs: 1500}},
	{"a tiny fraction", "PX 0,0001", statestore.Command{ExpiryMs: 1}},
	{"a long fraction", "PX 1." + strings.Repeat("0", 40) + "1", statestore.Command{ExpiryMs: 2}},
	{"leading zeros", "PX 00000000000000000000007", statestore.Command{ExpiryMs: 7}},
	{"the largest", "PX 9223372036854775807", statestore.Command{ExpiryMs: math.MaxInt64}},
	{"the largest with a fraction of nothing", "PX 9223372036854775807.0", statestore.Command{ExpiryMs: math.MaxInt64}},
	{"the largest with a fraction", "PX 9223372036854775806.1", statestore.Command{ExpiryMs: math.MaxInt64}},
}

func TestSection3SetOptions(t *testing.T) {
	t.Parallel()
	for _, tc := range setOptions {
		got, f := parse(words("SET key value " + tc.options))
		want := tc.want
		want.Verb, want.Key, want.Value = statestore.Set, []byte("key"), []byte("value")
		if f != statestore.None || differ(got, want) != "" {
			t.Errorf("%s: %q: %v, differs in %s: %+v", tc.rule, tc.options, f, differ(got, want), got)
		}
	}
	// The empty operand can't be written as a word.
	got, f := parse(resp("SET", "key", "value", "NEX", ""))
	if f != statestore.None || got.Condition != statestore.IfAbsentOrEqual || got.Compare == nil || len(got.Compare) != 0 {
		t.Errorf("NEX with an empty operand: %v, %+v", f, got)
	}
}

// badCommands are well-formed payloads with a fault up to the options.
var badCommands = []struct {
	rule    string
	command string
	want    statestore.Fault
}{
	{"unknown verb", "NOPE key", statestore.UnknownCommand},
	{"unknown verb, no argument", "NOPE", statestore.UnknownCommand},
	{"unknown verb, many arguments", "NOPE 1 2 3 4 5 6 7 8 9 10 11 12", statestore.UnknownCommand},
	{"GET without a key", "GET", statestore.WrongArgumentCount},
	{"GET takes no options", "GET key NX", statestore.WrongArgumentCount},
	{"GET with many arguments", "GET 1 2 3 4 5 6 7 8 9 10 11 12", statestore.WrongArgumentCount},
	{"DEL without a key", "DEL", statestore.WrongArgumentCount},
	{"DEL of two keys", "DEL key key2", statestore.WrongArgumentCount},
	{"VDEL without a value", "VDEL key", statestore.WrongArgumentCount},
	{"VDEL with two", "VDEL key value value", statestore.WrongArgumentCount},
	{"SET without a value", "SET key", statestore.WrongArgumentCount},
	{"SET without anything", "SET", statestore.WrongArgumentCount},
	{"KEYNOTIFY without a key", "KEYNOTIFY", statestore.WrongArgumentCount},
	{"SCAN without a pattern", "SCAN", statestore.WrongArgumentCount},
	{"SCAN with two tokens", "SCAN * a b", statestore.WrongArgumentCount},
	{"SCAN with a token behind an option", "SCAN * VALUES token", statestore.WrongArgumentCount},
	{"SCAN with an argument too many", "SCAN * token VALUES DETAILS BINARY x", statestore.WrongArgumentCount},

	{"NX with NEX", "SET key value NX NEX", statestore.Syntax},
	{"NEX with NX", "SET key value NEX PX 5 NX", statestore.Syntax},
	{"NX with NEX and operand", "SET key value NX NEX other", statestore.Syntax},
	{"NX twice", "SET key value NX NX", statestore.Syntax},
	{"NEX twice", "SET key value NEX other NEX", statestore.Syntax},
	{"PX twice", "SET key value PX 5 PX 6", statestore.Syntax},
	{"VER twice", "SET key value VER - VER -", statestore.Syntax},
	{"PX without a number", "SET key value PX", statestore.Syntax},
	{"VER without a version", "SET key value VER", statestore.Syntax},
	{"an unknown option", "SET key value EX 5", statestore.Syntax},
	{"too many options", "SET key value NEX other PX 5 VER - NX", statestore.Syntax},
	{"very many options", "SET key value NEX other PX 5 VER - NX 1 2 3 4 5 6", statestore.Syntax},
	{"NEX with a word too many", "SET key value NEX other more", statestore.Syntax},
	{"a syntax error comes before what VER says", "SET key value VER nonsense NX NX", statestore.Syntax},
	{"PX zero", "SET key value PX 0", statestore.Syntax},
	{"PX zero with a fraction of nothing", "SET key value PX 0.00", statestore.Syntax},
	{"PX negative", "SET key value PX -5", statestore.Syntax},
	{"PX with a sign", "SET key value PX +5", statestore.Syntax},
	{"PX overflowing", "SET key value PX 9223372036854775808", statestore.Syntax},
	{"PX overflowing by far", "SET key value PX 99999999999999999999999999", statestore.Syntax},
	{"PX overflowing by rounding up", "SET key value PX 9223372036854775807.1", statestore.Syntax},
	{"PX no number", "SET key value PX soon", statestore.Syntax},
	{"PX with a unit", "SET key value PX 5s", statestore.Syntax},
	{"PX with an exponent", "SET key value PX 1E+15", statestore.Syntax},
	{"PX in hexadecimal", "SET key value PX 0x10", statestore.Syntax},
	{"PX without digits before the point", "SET key value PX .5", statestore.Syntax},
	{"PX without digits after the point", "SET key value PX 5.", statestore.Syntax},
	{"PX with two points", "SET key value PX 1.5.5", statestore.Syntax},
	{"PX with thousands", "SET key value PX 1,500.5", statestore.Syntax},

	{"VER unparsable", "SET key value VER nonsense", statestore.MalformedTimestamp},
	{"VER with a part too many", "SET key value VER 1:2:n:m", statestore.MalformedTimestamp},
	{"VER --", "SET key value VER --", statestore.MalformedTimestamp},
	{"VER unparsable, NX", "SET key value VER 1:2 NX", statestore.MalformedTimestamp},

	{"KEYNOTIFY with an unknown option", "KEYNOTIFY key START", statestore.Syntax},
	{"KEYNOTIFY STOP twice", "KEYNOTIFY key STOP STOP", statestore.Syntax},
	{"KEYNOTIFY GET twice", "KEYNOTIFY key GET GET", statestore.Syntax},
	{"KEYNOTIFY with too many options", "KEYNOTIFY key GET STOP GET", statestore.Syntax},
	{"KEYNOTIFY with very many options", "KEYNOTIFY 1 2 3 4 5 6 7 8 9 10 11", statestore.Syntax},

	{"a malformed pattern", "SCAN [", statestore.Syntax},
	{"a reversed range", "SCAN key[z-a]", statestore.Syntax},
	{"a pattern that is not UTF-8", "SCAN \xff", statestore.Syntax},
	{"a pattern that is not UTF-8, with values", "SCAN \xff VALUES", statestore.Syntax},
	{"a malformed pattern of bytes", "SCAN [\xff BINARY", statestore.Syntax},
	{"SCAN with VALUES twice", "SCAN * VALUES values", statestore.Syntax},
	{"SCAN with DETAILS twice", "SCAN * VALUES DETAILS details", statestore.Syntax},
	{"SCAN with DETAILS and without VALUES", "SCAN * DETAILS", statestore.Syntax},
	{"SCAN with BINARY twice", "SCAN * token BINARY binary", statestore.Syntax},

	{"LOAD without a message", "LOAD key", statestore.WrongArgumentCount},
	{"LOAD takes no options", "LOAD key id GET", statestore.WrongArgumentCount},
	{"LOAD without anything", "LOAD", statestore.WrongArgumentCount},
	{"DONE without a message", "DONE key", statestore.WrongArgumentCount},
	{"DONE of two messages", "DONE key id id", statestore.Syntax},
	{"DONE with VER twice", "DONE key id VER 1:2:n VER 1:2:n", statestore.Syntax},
	{"DONE with CTX twice", "DONE key id CTX a CTX b", statestore.Syntax},
	{"DONE with an option without its operand", "DONE key id CTX a VER", statestore.Syntax},
	{"DONE with the version of no key", "DONE key id VER -", statestore.MalformedTimestamp},
	{"DONE with very many options", "DONE key id 1 2 3 4 5 6 7 8 9 10", statestore.Syntax},
	{"STORE without a version", "STORE key state id", statestore.WrongArgumentCount},
	{"STORE without anything", "STORE", statestore.WrongArgumentCount},
	{"CTX without a blob", "STORE key state id - CTX", statestore.Syntax},
	{"KEEP without a number", "STORE key state id - CTX blob KEEP", statestore.Syntax},
	{"CTX twice", "STORE key state id - CTX a CTX b", statestore.Syntax},
	{"KEEP twice", "STORE key state id - KEEP 5 KEEP 5", statestore.Syntax},
	{"KEEP zero", "STORE key state id - KEEP 0", statestore.Syntax},
	{"KEEP negative", "STORE key state id - KEEP -5", statestore.Syntax},
	{"KEEP overflowing", "STORE key state id - KEEP 9223372036854775808", statestore.Syntax},
	{"KEEP no number", "STORE key state id - KEEP ever", statestore.Syntax},
	{"PX twice", "STORE key state id - PX 5 PX 5", statestore.Syntax},
	{"PX zero", "STORE key state id - PX 0", statestore.Syntax},
	{"DEL twice", "STORE key state id - DEL DEL", statestore.Syntax},
	{"DEL and PX", "STORE key state id - DEL PX 5", statestore.Syntax},
	{"PX and DEL", "STORE key state id - PX 5 DEL", statestore.Syntax},
	{"SET's options aren't STORE's", "STORE key state id - NEX 5", statestore.Syntax},
	{"nor is NX", "STORE key state id - NX", statestore.Syntax},
	{"STORE with too many options", "STORE key state id - CTX blob KEEP 5 CTX", statestore.Syntax},
	{"STORE with very many options", "STORE key state id - 1 2 3 4 5 6 7 8", statestore.Syntax},
	{"the version unparsable", "STORE key state id nonsense", statestore.MalformedTimestamp},
	{"a syntax error comes before what the version says", "STORE key state id nonsense KEEP 0", statestore.Syntax},
}

func TestSection3And6Faults(t *testing.T) {
	t.Parallel()
	for _, tc := range badCommands {
		if _, f := parse(words(tc.command)); f != tc.want {
			t.Errorf("%s: %q: %v, want %v", tc.rule, tc.command, f, tc.want)
		}
	}
	if _, f := parse(resp("SET", "key", "value", "VER", "")); f != statestore.MalformedTimestamp {
		t.Errorf("an empty VER: %v", f)
	}
	if _, f := parse(resp("SET", "key", "value", "PX", "")); f != statestore.Syntax {
		t.Errorf("an empty PX: %v", f)
	}
}

// Protocol, section 6: the order of checks up to the options. Each row fails in
// everything that comes after it, too.
func TestSection6OrderOfChecks(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		check   string
		payload []byte
		want    statestore.Fault
	}{
		{"RESP form", append(resp("NOPE", ""), 'x'), statestore.Syntax},
		{"verb", resp("NOPE", ""), statestore.UnknownCommand},
		{"argument count, too few", resp("SET", ""), statestore.WrongArgumentCount},
		{"argument count, too many", resp("GET", "", ""), statestore.WrongArgumentCount},
		{"argument count of VDEL", resp("VDEL", "", "", ""), statestore.WrongArgumentCount},
		{"key length", resp("SET", "", "v", "PX", "0", "NOPE"), statestore.EmptyKey},
		{"key length before too many options", resp("SET", "", "v", "1", "2", "3", "4", "5", "6", "7"), statestore.EmptyKey},
		{"key length of KEYNOTIFY", resp("KEYNOTIFY", "", "NOPE"), statestore.EmptyKey},
		{"options", resp("SET", "k", "v", "PX", "0"), statestore.Syntax},
		{"argument count of STORE", resp("STORE", "", "", ""), statestore.WrongArgumentCount},
		{"key length of STORE", resp("STORE", "", "", "", "nonsense", "NOPE"), statestore.EmptyKey},
		{"argument count of LOAD", resp("LOAD", ""), statestore.WrongArgumentCount},
		{"key length of LOAD", resp("LOAD", "", ""), statestore.EmptyKey},
	} {
		if _, f := parse(tc.payload); f != tc.want {
			t.Errorf("%s: %q: %v, want %v", tc.check, tc.payload, f, tc.want)
		}
	}
}

func TestSection3KeyNotifyOptions(t *testing.T) {
	t.Parallel()
	for command, stop := range map[string]bool{
		"KEYNOTIFY key": false, "KEYNOTIFY key GET": false,
		"KEYNOTIFY key STOP": true, "KEYNOTIFY key STOP GET": true, "KEYNOTIFY key GET STOP": true,
	} {
		want := statestore.Command{Verb: statestore.KeyNotify, Key: []byte("key"), Stop: stop}
		if got, f := parse(words(command)); f != statestore.None || differ(got, want) != "" {
			t.Errorf("%s: %v, differs in %q", command, f, differ(got, want))
		}
	}
}

func TestSection7ScanArguments(t *testing.T) {
	t.Parallel()
	want := statestore.Command{Verb: statestore.Scan, Key: []byte("key[*]*")}
	if got, f := parse(resp("SCAN", "key[*]*")); f != statestore.None || differ(got, want) != "" {
		t.Errorf("the first page: %v, differs in %q", f, differ(got, want))
	}
	want.HasToken, want.Value = true, []byte("token")
	if got, f := parse(resp("SCAN", "key[*]*", "token")); f != statestore.None || differ(got, want) != "" {
		t.Errorf("the next page: %v, differs in %q", f, differ(got, want))
	}
	// An empty token is a token, which the rules will find malformed; an empty
	// pattern is a syntax error, not an empty key.
	if got, f := parse(resp("SCAN", "*", "")); f != statestore.None || !got.HasToken {
		t.Errorf("an empty token: %v, %+v", f, got)
	}
	if _, f := parse(resp("SCAN", "")); f != statestore.Syntax {
		t.Errorf("an empty pattern: %v", f)
	}
}

func TestSection7ScanOptions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]statestore.Command{
		"SCAN a* VALUES":                      {Values: true},
		"SCAN a* binary":                      {Binary: true},
		"SCAN a* BINARY values":               {Values: true, Binary: true},
		"SCAN a* token VALUES":                {HasToken: true, Value: []byte("token"), Values: true},
		"SCAN a* token VALUES BINARY":         {HasToken: true, Value: []byte("token"), Values: true, Binary: true},
		"SCAN a* details VALUES":              {Values: true, Details: true},
		"SCAN a* token BINARY DETAILS VALUES": {HasToken: true, Value: []byte("token"), Values: true, Details: true, Binary: true},
	} {
		want.Verb, want.Key = statestore.Scan, []byte("a*")
		if got, f := parse(words(text)); f != statestore.None || differ(got, want) != "" {
			t.Errorf("%s: %v, differs in %q", text, f, differ(got, want))
		}
	}
	if got, f := parse(resp("SCAN", "\xff*", "BINARY")); f != statestore.None || string(got.Key) != "\xff*" {
		t.Errorf("a pattern of bytes: %v, %+v", f, got)
	}
}

// storeCommands are those of protocol, section 8, with key "key" and message "id".
var storeCommands = []struct {
	rule    string
	payload []byte
	want    statestore.Command
}{
	{"LOAD", words("LOAD key id"), statestore.Command{Verb: statestore.Load}},
	{"DONE", words("DONE key id"), statestore.Command{Verb: statestore.Done}},
	{"STORE of a key that does not exist", words("STORE key state id -"), statestore.Command{Verb: statestore.Store, Value: []byte("state"), Version: absent}},
	{"STORE of a version, as padded as it likes", words("STORE key state id 0001:02:n"),
		statestore.Command{Verb: statestore.Store, Value: []byte("state"), Version: statestore.VersionCheck{Given: true, At: hlc.Timestamp{Wall: 1, Counter: 2, Node: "n"}}}},
	{"an empty state is a state", resp("STORE", "key", "", "id", "-"), statestore.Command{Verb: statestore.Store, Value: []byte{}, Version: absent}},
	{"CTX", words("STORE key state id - CTX blob"), statestore.Command{Verb: statestore.Store, Value: []byte("state"), Version: absent, Context: []byte("blob")}},
	{"an empty CTX is a context", resp("STORE", "key", "state", "id", "-", "CTX", ""), statestore.Command{Verb: statestore.Store, Value: []byte("state"), Version: absent, Context: []byte{}}},
	{"KEEP parses like PX", words("STORE key state id - KEEP 1500,2"), statestore.Command{Verb: statestore.Store, Value: []byte("state"), Version: absent, KeepMs: 1501}},
	{"PX", words("STORE key state id - PX 5"), statestore.Command{Verb: statestore.Store, Value: []byte("state"), Version: absent, ExpiryMs: 5}},
	{"DEL", words("STORE key state id - DEL"), statestore.Command{Verb: statestore.Store, Value: []byte("state"), Version: absent, Remove: true}},
	{"CTX DEL KEEP", words("STORE key state id - CTX del DEL KEEP 5"), statestore.Command{Verb: statestore.Store, Value: []byte("state"), Version: absent, Context: []byte("del"), Remove: true, KeepMs: 5}},
	{"all options", words("STORE key state id - CTX DEL KEEP 6 PX 5"), statestore.Command{Verb: statestore.Store, Value: []byte("state"), Version: absent, Context: []byte("DEL"), ExpiryMs: 5, KeepMs: 6}},
	{"DONE with a version", words("DONE key id VER 1:2:n"),
		statestore.Command{Verb: statestore.Done, Version: statestore.VersionCheck{Given: true, At: hlc.Timestamp{Wall: 1, Counter: 2, Node: "n"}}}},
	{"DONE with a context", words("DONE key id CTX blob"), statestore.Command{Verb: statestore.Done, Context: []byte("blob")}},
	{"CTX KEEP", words("STORE key state id - CTX blob KEEP 5"), statestore.Command{Verb: statestore.Store, Value: []byte("state"), Version: absent, Context: []byte("blob"), KeepMs: 5}},
	{"KEEP CTX", words("STORE key state id - KEEP 5 CTX blob"), statestore.Command{Verb: statestore.Store, Value: []byte("state"), Version: absent, Context: []byte("blob"), KeepMs: 5}},
	{"a context that reads KEEP", words("STORE key state id - CTX KEEP KEEP 5"), statestore.Command{Verb: statestore.Store, Value: []byte("state"), Version: absent, Context: []byte("KEEP"), KeepMs: 5}},
}

var absent = statestore.VersionCheck{Given: true, Absent: true}

func TestSection8Arguments(t *testing.T) {
	t.Parallel()
	for _, tc := range storeCommands {
		want := tc.want
		want.Key, want.Message = []byte("key"), []byte("id")
		if got, f := parse(tc.payload); f != statestore.None || differ(got, want) != "" {
			t.Errorf("%s: %v, differs in %s: %+v", tc.rule, f, differ(got, want), got)
		}
	}
	for _, payload := range [][]byte{resp("LOAD", "key", ""), resp("STORE", "key", "state", "", "-"), resp("DONE", "key", "")} {
		if _, f := parse(payload); f != statestore.Syntax {
			t.Errorf("an empty messageId is a syntax error: %q: %v", payload, f)
		}
	}
}

// The table of protocol, section 1.
func TestSection1Dialects(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		dialect            *protocol.Dialect
		topic, time, token string
		current            bool
	}{
		{protocol.Current, "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke", "__ts", "__ft", true},
		{protocol.Preview, "$services/statestore/_any_/command/invoke/request", "Timestamp", "FencingToken", false},
	} {
		d := tc.dialect
		if d.Topic != tc.topic || d.TimeProperty != tc.time || d.TokenProperty != tc.token || d.Current != tc.current {
			t.Errorf("%s: %+v", d.Name, d)
		}
		for command, always := range map[string]bool{
			"SET key value": true, "GET key": true, "DEL key": true, "VDEL key value": true,
			"KEYNOTIFY key": false, "SCAN *": false, "KEYNOTIFY": false, "SCAN": false,
			"LOAD key id": false, "STORE key state id -": false, "DONE key id": false, "LOAD": false, "STORE": false, "DONE": false,
		} {
			var cmd statestore.Command
			f := protocol.Parse(words(command), d, protocol.DefaultMaxKey, &cmd)
			if unknown := f == statestore.UnknownCommand; unknown == (always || tc.current) {
				t.Errorf("%s: %s: %v", d.Name, command, f)
			}
		}
	}
}

func TestParseStamp(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		value   string
		present bool
		want    statestore.Stamp
	}{
		{"", false, statestore.Stamp{State: statestore.Missing}},
		{"", true, statestore.Stamp{State: statestore.Malformed}},
		{"nonsense", true, statestore.Stamp{State: statestore.Malformed}},
		{"1:2:n", true, statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: 1, Counter: 2, Node: "n"}}},
		{"1:2:" + strings.Repeat("n", protocol.MaxNodeID), true, statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: 1, Counter: 2, Node: strings.Repeat("n", protocol.MaxNodeID)}}},
		{"1:2:" + strings.Repeat("n", protocol.MaxNodeID+1), true, statestore.Stamp{State: statestore.Malformed}},
	} {
		if got := protocol.ParseStamp([]byte(tc.value), tc.present); got != tc.want {
			t.Errorf("ParseStamp(%q, %v) = %+v, want %+v", tc.value, tc.present, got, tc.want)
		}
	}
}

func TestParseWire(t *testing.T) {
	t.Parallel()
	for _, wire := range []protocol.Wire{protocol.SDK, protocol.Documented} {
		if got, err := protocol.ParseWire(wire.String()); err != nil || got != wire {
			t.Errorf("ParseWire(%q) = %v, %v", wire, got, err)
		}
	}
	for _, s := range []string{"", "SDK", "other"} {
		if _, err := protocol.ParseWire(s); err == nil {
			t.Errorf("ParseWire(%q) is accepted", s)
		}
	}
}
