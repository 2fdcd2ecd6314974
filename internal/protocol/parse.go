package protocol

import (
	"math"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/glob"
)

// maxArgs is the number of arguments of the longest command, its verb included:
// STORE key state messageId version CTX blob KEEP ms PX ms. Further ones are checked for their
// form and counted, but not kept.
const maxArgs = 11

// Bounds in bytes of what a request names. A longer key, pattern or message ID is a
// syntax error, a longer node ID makes its timestamp malformed.
const (
	DefaultMaxKey = 64 << 10 // of a key, unless the server is set otherwise
	MaxPattern    = 1 << 10  // of SCAN's pattern, whose length bounds the work of a match
	MaxMessageID  = 1 << 10
	MaxNodeID     = 256 // in a version, a timestamp or a fencing token: a key keeps its token in memory
)

// arguments are the blob strings of a request.
type arguments struct {
	blob   [maxArgs][]byte
	count  int // may be more than maxArgs
	maxKey int
}

// Parse reads a request's payload into cmd, which it resets; what it fills in are
// views of payload. It makes the checks of protocol, section 6, up to the
// options, in their order, and returns the first fault; maxKey is the length of the
// longest key that is accepted. The properties of the
// request are the caller's to fill in afterwards (ParseStamp), and so is what the
// permission check finds. Of a TXN it reads the verb only: see ParseTxn.
func Parse(payload []byte, d *Dialect, maxKey int, cmd *statestore.Command) statestore.Fault {
	*cmd = statestore.Command{}
	args := arguments{maxKey: maxKey}
	var ok bool
	if args.count, ok = parseArray(payload, args.blob[:]); !ok || args.count == 0 {
		return statestore.Syntax
	}
	cmd.Verb = verb(args.blob[0], d)
	switch cmd.Verb {
	case statestore.Get, statestore.Del:
		return parseKey(cmd, &args, args.count == 2)
	case statestore.Set:
		return parseSet(cmd, &args)
	case statestore.VDel:
		cmd.Value = args.blob[2]
		return parseKey(cmd, &args, args.count == 3)
	case statestore.KeyNotify:
		return parseKeyNotify(cmd, &args)
	case statestore.Scan:
		return parseScan(cmd, &args)
	case statestore.Load:
		return parseMessage(cmd, &args, args.count == 3, args.blob[2])
	case statestore.Done:
		return parseDone(cmd, &args)
	case statestore.Store:
		return parseStore(cmd, &args)
	case statestore.Timers:
		return parseTimers(cmd, &args)
	case statestore.Cancel:
		return parseCancel(cmd, &args)
	case statestore.Txn: // ParseTxn reads the rest
		if args.count < 2 {
			return statestore.WrongArgumentCount
		}
		return statestore.None
	default:
		return statestore.UnknownCommand
	}
}

// verb returns the verb that word is in the dialect, or 0.
func verb(word []byte, d *Dialect) statestore.Verb {
	switch len(word) {
	case 3:
		switch {
		case isWord(word, "get"):
			return statestore.Get
		case isWord(word, "set"):
			return statestore.Set
		case isWord(word, "del"):
			return statestore.Del
		case isWord(word, "txn"):
			return statestore.Txn
		}
	case 4:
		switch {
		case isWord(word, "vdel"):
			return statestore.VDel
		case d.Current && isWord(word, "scan"):
			return statestore.Scan
		case d.Current && isWord(word, "load"):
			return statestore.Load
		case d.Current && isWord(word, "done"):
			return statestore.Done
		}
	case 5:
		if d.Current && isWord(word, "store") {
			return statestore.Store
		}
	case 6:
		switch {
		case d.Current && isWord(word, "timers"):
			return statestore.Timers
		case d.Current && isWord(word, "cancel"):
			return statestore.Cancel
		}
	case 9:
		if d.Current && isWord(word, "keynotify") {
			return statestore.KeyNotify
		}
	}
	return 0
}

// isWord reports whether b is word in any case. word consists of lower-case
// letters: with the bit 0x20 set, nothing but its two cases is equal to it.
func isWord(b []byte, word string) bool {
	if len(b) != len(word) {
		return false
	}
	for i := range len(word) {
		if b[i]|0x20 != word[i] {
			return false
		}
	}
	return true
}

// parseKey checks the number of arguments, as counted by the caller, then the key.
func parseKey(cmd *statestore.Command, args *arguments, countFits bool) statestore.Fault {
	if !countFits {
		return statestore.WrongArgumentCount
	}
	cmd.Key = args.blob[1]
	switch {
	case len(cmd.Key) == 0:
		return statestore.EmptyKey
	case len(cmd.Key) > args.maxKey:
		return statestore.Syntax
	}
	return statestore.None
}

// parseSet reads SET key value [NX | NEX [compare]] [PX ms] [VER version].
func parseSet(cmd *statestore.Command, args *arguments) statestore.Fault {
	if f := parseKey(cmd, args, args.count >= 3); f != statestore.None {
		return f
	}
	cmd.Value = args.blob[2]
	if args.count == 3 {
		return statestore.None
	}
	if args.count > maxArgs {
		return statestore.Syntax // each option at most once: there can't be more
	}
	return parseSetOptions(cmd, args.blob[3:args.count])
}

// parseSetOptions reads SET's options. Whatever is wrong with their form is a
// syntax error; only then is the text of VER judged.
func parseSetOptions(cmd *statestore.Command, options [][]byte) statestore.Fault {
	var version []byte
	for len(options) > 0 {
		name := options[0]
		options = options[1:]
		switch {
		case isWord(name, "nx") && cmd.Condition == statestore.Always:
			cmd.Condition = statestore.IfAbsent
		case isWord(name, "nex") && cmd.Condition == statestore.Always:
			cmd.Condition = statestore.IfAbsentOrEqual
			cmd.Compare = cmd.Value
			// PX and VER are pairs: an odd number left means that the first
			// is the operand, whatever its text.
			if len(options)%2 == 1 {
				cmd.Compare = options[0]
				options = options[1:]
			}
		case isWord(name, "px") && cmd.ExpiryMs == 0 && len(options) > 0:
			ms, ok := milliseconds(options[0])
			if !ok {
				return statestore.Syntax
			}
			cmd.ExpiryMs = ms
			options = options[1:]
		case isWord(name, "ver") && !cmd.Version.Given && len(options) > 0:
			cmd.Version.Given = true
			version = options[0]
			options = options[1:]
		default:
			return statestore.Syntax
		}
	}
	if cmd.Version.Given {
		return parseVersionCheck(version, &cmd.Version)
	}
	return statestore.None
}

// parseVersionCheck reads the operand of VER and the version that STORE demands: a
// version, or - for no such key.
func parseVersionCheck(text []byte, check *statestore.VersionCheck) statestore.Fault {
	if string(text) == "-" {
		check.Absent = true
		return statestore.None
	}
	at, ok := parseTimestamp(text)
	if !ok {
		return statestore.MalformedTimestamp
	}
	check.At = at
	return statestore.None
}

// parseTimestamp reads a version or a token with a node ID of at most MaxNodeID
// bytes, which is a view of text.
func parseTimestamp(text []byte) (at hlc.Timestamp, ok bool) {
	at, err := hlc.ParseBytes(text)
	return at, err == nil && len(at.Node) <= MaxNodeID
}

// milliseconds reads the operand of PX and KEEP: a positive decimal number. A fraction,
// which the .NET client sends with the point or the comma of its locale, is
// rounded up.
func milliseconds(text []byte) (ms int64, ok bool) {
	i := 0
	for ; i < len(text) && isDigit(text[i]); i++ {
		digit := int64(text[i] - '0')
		if ms > (math.MaxInt64-digit)/10 {
			return 0, false
		}
		ms = ms*10 + digit
	}
	if i == 0 {
		return 0, false
	}
	if i < len(text) {
		up, ok := fraction(text[i:])
		if !ok || up > math.MaxInt64-ms {
			return 0, false
		}
		ms += up
	}
	return ms, ms > 0
}

// fraction reads a point or comma and the digits after it, and returns 1 if they
// are more than zero.
func fraction(text []byte) (up int64, ok bool) {
	if text[0] != '.' && text[0] != ',' || len(text) == 1 {
		return 0, false
	}
	for _, c := range text[1:] {
		if !isDigit(c) {
			return 0, false
		}
		if c != '0' {
			up = 1
		}
	}
	return up, true
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// parseKeyNotify reads KEYNOTIFY key [STOP] [GET]. GET changes nothing: a
// notification always carries the value.
func parseKeyNotify(cmd *statestore.Command, args *arguments) statestore.Fault {
	if f := parseKey(cmd, args, args.count >= 2); f != statestore.None {
		return f
	}
	if args.count > 4 {
		return statestore.Syntax
	}
	get := false
	for _, option := range args.blob[2:args.count] {
		switch {
		case isWord(option, "stop") && !cmd.Stop:
			cmd.Stop = true
		case isWord(option, "get") && !get:
			get = true
		default:
			return statestore.Syntax
		}
	}
	return statestore.None
}

// parseScan reads SCAN pattern [token] [VALUES [DETAILS]] [BINARY], the options in any
// order. No token is as short as the name of an option. An empty pattern is malformed like any other, hence a syntax error
// (protocol, section 7), and so is one that is too long.
func parseScan(cmd *statestore.Command, args *arguments) statestore.Fault {
	if args.count < 2 || args.count > 6 {
		return statestore.WrongArgumentCount
	}
	cmd.Key = args.blob[1]
	for i, arg := range args.blob[2:args.count] {
		var option *bool
		switch {
		case isWord(arg, "values"):
			option = &cmd.Values
		case isWord(arg, "details"):
			option = &cmd.Details
		case isWord(arg, "binary"):
			option = &cmd.Binary
		case i == 0:
			cmd.HasToken = true
			cmd.Value = arg
			continue
		default:
			return statestore.WrongArgumentCount
		}
		if *option {
			return statestore.Syntax // each at most once
		}
		*option = true
	}
	if cmd.Details && !cmd.Values || len(cmd.Key) > MaxPattern || !validPattern(cmd) {
		return statestore.Syntax
	}
	return statestore.None
}

// parseTimers reads TIMERS prefix [id].
func parseTimers(cmd *statestore.Command, args *arguments) statestore.Fault {
	if args.count < 2 || args.count > 3 {
		return statestore.WrongArgumentCount
	}
	cmd.Key, cmd.Value, cmd.HasToken = args.blob[1], args.blob[2], args.count == 3
	if len(cmd.Key) > delay.MaxID || cmd.HasToken && !validTimerID(cmd.Value) {
		return statestore.Syntax
	}
	return statestore.None
}

// parseCancel reads CANCEL id.
func parseCancel(cmd *statestore.Command, args *arguments) statestore.Fault {
	if args.count != 2 {
		return statestore.WrongArgumentCount
	}
	if cmd.Key = args.blob[1]; !validTimerID(cmd.Key) {
		return statestore.Syntax
	}
	return statestore.None
}

func validTimerID(id []byte) bool { return len(id) > 0 && len(id) <= delay.MaxID }

func validPattern(cmd *statestore.Command) bool {
	if cmd.Binary {
		return glob.ValidBytes(cmd.Key)
	}
	return glob.Valid(cmd.Key)
}

// parseMessage checks the number of arguments, as counted by the caller, then the
// key, then the message ID.
func parseMessage(cmd *statestore.Command, args *arguments, countFits bool, message []byte) statestore.Fault {
	if f := parseKey(cmd, args, countFits); f != statestore.None {
		return f
	}
	cmd.Message = message
	if len(message) == 0 || len(message) > MaxMessageID {
		return statestore.Syntax
	}
	return statestore.None
}

// parseDone reads DONE key messageId [VER version] [CTX blob]. As with SET, the text of
// the version is judged once the form of the options is right.
func parseDone(cmd *statestore.Command, args *arguments) statestore.Fault {
	if f := parseMessage(cmd, args, args.count >= 3, args.blob[2]); f != statestore.None {
		return f
	}
	if args.count > maxArgs {
		return statestore.Syntax
	}
	var version []byte
	options := args.blob[3:args.count]
	for ; len(options) >= 2; options = options[2:] {
		switch name, operand := options[0], options[1]; {
		case isWord(name, "ver") && !cmd.Version.Given:
			cmd.Version.Given, version = true, operand
		case isWord(name, "ctx") && cmd.Context == nil:
			cmd.Context = operand
		default:
			return statestore.Syntax
		}
	}
	if len(options) > 0 {
		return statestore.Syntax
	}
	if !cmd.Version.Given {
		return statestore.None
	}
	var ok bool
	if cmd.Version.At, ok = parseTimestamp(version); !ok { // - too: a message has a version
		return statestore.MalformedTimestamp
	}
	return statestore.None
}

// parseStore reads STORE key state messageId version [CTX blob] [KEEP ms] [PX ms | DEL]. As with
// SET, the text of the version is judged once the form of the options is right.
func parseStore(cmd *statestore.Command, args *arguments) statestore.Fault {
	if f := parseMessage(cmd, args, args.count >= 5, args.blob[3]); f != statestore.None {
		return f
	}
	cmd.Value = args.blob[2]
	if args.count > maxArgs {
		return statestore.Syntax // each option at most once: there can't be more
	}
	if !parseStoreOptions(cmd, args.blob[5:args.count]) {
		return statestore.Syntax
	}
	cmd.Version.Given = true
	return parseVersionCheck(args.blob[4], &cmd.Version)
}

func parseStoreOptions(cmd *statestore.Command, options [][]byte) (ok bool) {
	for len(options) > 0 {
		if isWord(options[0], "del") && !cmd.Remove && cmd.ExpiryMs == 0 {
			cmd.Remove, options = true, options[1:]
			continue
		}
		if len(options) == 1 {
			return false
		}
		switch name, operand := options[0], options[1]; {
		case isWord(name, "ctx") && cmd.Context == nil:
			cmd.Context = operand
		case isWord(name, "px") && cmd.ExpiryMs == 0 && !cmd.Remove:
			if cmd.ExpiryMs, ok = milliseconds(operand); !ok {
				return false
			}
		case isWord(name, "keep") && cmd.KeepMs == 0:
			if cmd.KeepMs, ok = milliseconds(operand); !ok {
				return false
			}
		default:
			return false
		}
		options = options[2:]
	}
	return true
}

// ParseStamp turns what was found of a timestamp property, the first of its name,
// into what Command.Time and Command.Token hold. present is false if there is no
// such property. The node ID is a view of value.
func ParseStamp(value []byte, present bool) statestore.Stamp {
	if !present {
		return statestore.Stamp{}
	}
	at, ok := parseTimestamp(value)
	if !ok {
		return statestore.Stamp{State: statestore.Malformed}
	}
	return statestore.Stamp{State: statestore.Given, At: at}
}
