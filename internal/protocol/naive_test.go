package protocol_test

import (
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/glob"
)

// naiveParse reads a request off protocol, sections 3 and 6, with no thought of
// memory or time. It shares nothing with Parse but glob and hlc, which have
// models of their own.
func naiveParse(payload string, current bool) (statestore.Command, statestore.Fault) {
	args, ok := naiveArray(payload)
	if !ok || len(args) == 0 {
		return statestore.Command{}, statestore.Syntax
	}
	switch verb := naiveUpper(args[0]); {
	case verb == "GET":
		return naiveKey(statestore.Get, args, len(args) == 2)
	case verb == "DEL":
		return naiveKey(statestore.Del, args, len(args) == 2)
	case verb == "VDEL":
		cmd, f := naiveKey(statestore.VDel, args, len(args) == 3)
		if f == statestore.None {
			cmd.Value = []byte(args[2])
		}
		return cmd, f
	case verb == "SET":
		return naiveSet(args)
	case verb == "TXN":
		if len(args) < 2 {
			return statestore.Command{}, statestore.WrongArgumentCount
		}
		return statestore.Command{Verb: statestore.Txn}, statestore.None
	case verb == "KEYNOTIFY" && current:
		cmd, f := naiveKey(statestore.KeyNotify, args, len(args) >= 2)
		if f != statestore.None {
			return cmd, f
		}
		seen := map[string]bool{}
		for _, option := range args[2:] {
			option = naiveUpper(option)
			if seen[option] || option != "STOP" && option != "GET" {
				return cmd, statestore.Syntax
			}
			seen[option] = true
		}
		cmd.Stop = seen["STOP"]
		return cmd, statestore.None
	case verb == "SCAN" && current:
		return naiveScan(args)
	case verb == "DONE" && current:
		return naiveDone(args)
	case verb == "LOAD" && current:
		cmd, f := naiveKey(statestore.Load, args, len(args) == 3)
		if f == statestore.None && (args[2] == "" || len(args[2]) > 1024) {
			f = statestore.Syntax
		}
		if f == statestore.None {
			cmd.Message = []byte(args[2])
		}
		return cmd, f
	case verb == "STORE" && current:
		return naiveStore(args)
	}
	return statestore.Command{}, statestore.UnknownCommand
}

func naiveScan(args []string) (statestore.Command, statestore.Fault) {
	if len(args) < 2 || len(args) > 6 {
		return statestore.Command{}, statestore.WrongArgumentCount
	}
	cmd := statestore.Command{Verb: statestore.Scan, Key: []byte(args[1])}
	options := args[2:]
	names := map[string]bool{"VALUES": true, "DETAILS": true, "BINARY": true}
	if len(options) > 0 && !names[naiveUpper(options[0])] {
		cmd.HasToken, cmd.Value, options = true, []byte(options[0]), options[1:]
	}
	seen := map[string]bool{}
	for _, option := range options {
		option = naiveUpper(option)
		if !names[option] {
			return cmd, statestore.WrongArgumentCount
		}
		if seen[option] {
			return cmd, statestore.Syntax
		}
		seen[option] = true
	}
	cmd.Values, cmd.Details, cmd.Binary = seen["VALUES"], seen["DETAILS"], seen["BINARY"]
	if cmd.Details && !cmd.Values || len(args[1]) > 1024 || !cmd.Binary && !glob.Valid([]byte(args[1])) || cmd.Binary && !glob.ValidBytes([]byte(args[1])) {
		return cmd, statestore.Syntax
	}
	return cmd, statestore.None
}

func naiveDone(args []string) (statestore.Command, statestore.Fault) {
	cmd, f := naiveKey(statestore.Done, args, len(args) >= 3)
	if f != statestore.None {
		return cmd, f
	}
	given := map[string]string{}
	for i := 3; i < len(args); i += 2 {
		name := naiveUpper(args[i])
		if _, twice := given[name]; twice || i+1 == len(args) || name != "CTX" && name != "VER" {
			return cmd, statestore.Syntax
		}
		given[name] = args[i+1]
	}
	if args[2] == "" || len(args[2]) > 1024 {
		return cmd, statestore.Syntax
	}
	cmd.Message = []byte(args[2])
	if blob, ok := given["CTX"]; ok {
		cmd.Context = append([]byte{}, blob...)
	}
	if given["VER"] == "-" {
		return cmd, statestore.MalformedTimestamp
	}
	delete(given, "CTX")
	return cmd, naiveOptions(&cmd, given)
}

func naiveStore(args []string) (statestore.Command, statestore.Fault) {
	cmd, f := naiveKey(statestore.Store, args, len(args) >= 5)
	if f != statestore.None {
		return cmd, f
	}
	given := map[string]string{"VER": args[4]}
	for i := 5; i < len(args); i += 2 {
		name := naiveUpper(args[i])
		if name == "DEL" && !cmd.Remove {
			cmd.Remove = true
			i-- // it has no operand
			continue
		}
		if _, twice := given[name]; twice || i+1 == len(args) || name != "CTX" && name != "KEEP" && name != "PX" {
			return cmd, statestore.Syntax
		}
		given[name] = args[i+1]
	}
	if args[3] == "" || len(args[3]) > 1024 {
		return cmd, statestore.Syntax
	}
	cmd.Value, cmd.Message = []byte(args[2]), []byte(args[3])
	if blob, ok := given["CTX"]; ok {
		cmd.Context = append([]byte{}, blob...)
	}
	if text, ok := given["KEEP"]; ok {
		if cmd.KeepMs, ok = naiveMilliseconds(text); !ok {
			return cmd, statestore.Syntax
		}
	}
	delete(given, "CTX")
	delete(given, "KEEP")
	if _, expires := given["PX"]; expires && cmd.Remove {
		return cmd, statestore.Syntax
	}
	return cmd, naiveOptions(&cmd, given)
}

// naiveUpper leaves everything but ASCII letters alone, unlike strings.ToUpper.
func naiveUpper(s string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' {
			return r - 'a' + 'A'
		}
		return r
	}, s)
}

func naiveKey(verb statestore.Verb, args []string, countFits bool) (statestore.Command, statestore.Fault) {
	if !countFits {
		return statestore.Command{}, statestore.WrongArgumentCount
	}
	if args[1] == "" {
		return statestore.Command{}, statestore.EmptyKey
	}
	if len(args[1]) > 65_536 {
		return statestore.Command{}, statestore.Syntax
	}
	return statestore.Command{Verb: verb, Key: []byte(args[1])}, statestore.None
}

var naiveHead = regexp.MustCompile(`^([0-9]+)\r\n`)

// naiveNumber cuts a type byte and a number, which may be as large as it likes.
func naiveNumber(s, kind string) (n int, rest string, ok bool) {
	rest, ok = strings.CutPrefix(s, kind)
	head := naiveHead.FindString(rest)
	if !ok || head == "" {
		return 0, "", false
	}
	digits := strings.TrimLeft(strings.TrimSuffix(head, "\r\n"), "0")
	if len(digits) > 9 {
		return 0, "", false
	}
	n, _ = strconv.Atoi("0" + digits)
	return n, rest[len(head):], true
}

func naiveArray(s string) (args []string, ok bool) {
	count, s, ok := naiveNumber(s, "*")
	if !ok {
		return nil, false
	}
	for range count {
		var size int
		size, s, ok = naiveNumber(s, "$")
		if !ok || len(s) < size+2 || s[size:size+2] != "\r\n" {
			return nil, false
		}
		args = append(args, s[:size])
		s = s[size+2:]
	}
	return args, s == ""
}

func naiveSet(args []string) (statestore.Command, statestore.Fault) {
	cmd, f := naiveKey(statestore.Set, args, len(args) >= 3)
	if f != statestore.None {
		return cmd, f
	}
	cmd.Value = []byte(args[2])
	given := map[string]string{}
	options := args[3:]
	pop := func() string {
		first := options[0]
		options = options[1:]
		return first
	}
	for len(options) > 0 {
		name := naiveUpper(pop())
		if _, twice := given[name]; twice {
			return cmd, statestore.Syntax
		}
		switch {
		case name == "NX":
			given[name] = ""
		case name == "NEX" && len(options)%2 == 1:
			given[name] = pop()
		case name == "NEX":
			given[name] = args[2]
		case (name == "PX" || name == "VER") && len(options) > 0:
			given[name] = pop()
		default:
			return cmd, statestore.Syntax
		}
	}
	return cmd, naiveOptions(&cmd, given)
}

func naiveOptions(cmd *statestore.Command, given map[string]string) statestore.Fault {
	_, nx := given["NX"]
	compare, nex := given["NEX"]
	switch {
	case nx && nex:
		return statestore.Syntax
	case nx:
		cmd.Condition = statestore.IfAbsent
	case nex:
		cmd.Condition, cmd.Compare = statestore.IfAbsentOrEqual, []byte(compare)
	}
	if px, ok := given["PX"]; ok {
		if cmd.ExpiryMs, ok = naiveMilliseconds(px); !ok {
			return statestore.Syntax
		}
	}
	if text, ok := given["VER"]; ok {
		cmd.Version.Given, cmd.Version.Absent = true, text == "-"
		if text != "-" {
			at, err := hlc.Parse(text)
			if err != nil || len(at.Node) > 256 {
				return statestore.MalformedTimestamp
			}
			cmd.Version.At = at
		}
	}
	return statestore.None
}

var naiveDecimal = regexp.MustCompile(`\A[0-9]+([.,][0-9]+)?\z`)

func naiveMilliseconds(text string) (int64, bool) {
	if !naiveDecimal.MatchString(text) {
		return 0, false
	}
	whole, fraction, _ := strings.Cut(strings.Replace(text, ",", ".", 1), ".")
	up, ok := new(big.Int).SetString(whole, 10)
	if !ok {
		return 0, false
	}
	if strings.Trim(fraction, "0") != "" {
		up.Add(up, big.NewInt(1))
	}
	if up.Sign() <= 0 || up.Cmp(big.NewInt(math.MaxInt64)) > 0 {
		return 0, false
	}
	return up.Int64(), true
}

// agree checks one payload in both dialects.
func agree(t interface{ Fatalf(string, ...any) }, payload []byte) {
	for _, d := range []*protocol.Dialect{protocol.Current, protocol.Preview} {
		var got statestore.Command
		gotFault := protocol.Parse(payload, d, protocol.DefaultMaxKey, &got)
		want, wantFault := naiveParse(string(payload), d.Current)
		if gotFault != wantFault {
			t.Fatalf("%q in %s: %v, want %v", payload, d.Name, gotFault, wantFault)
		}
		if gotFault == statestore.None && differ(got, want) != "" {
			t.Fatalf("%q in %s differs in %s:\n got %+v\nwant %+v", payload, d.Name, differ(got, want), got, want)
		}
	}
}

func TestParseAgreesWithTheNaiveParser(t *testing.T) {
	t.Parallel()
	word := rapid.OneOf(
		rapid.SampledFrom([]string{"NX", "nx", "NEX", "nex", "PX", "px", "VER", "Ver", "STOP", "GET", "get", "-", "", "k", "*", "CTX", "ctx", "KEEP", "keep", "DEL", "VALUES", "values", "DETAILS", "details", "BINARY", "Binary", "\xff"}),
		rapid.SampledFrom([]string{"5", "0", "1.5", "1,5", "0.0", "007", "1:2:n", "001:02:n", "1:2", "9223372036854775807", "9223372036854775807.5"}),
		rapid.StringMatching(`[0-9]{1,20}[.,]?[0-9]{0,3}`),
	)
	verb := rapid.SampledFrom([]string{"SET", "SET", "SET", "SET", "Set", "GET", "DEL", "VDEL", "KEYNOTIFY", "keyNotify", "SCAN", "LOAD", "DONE", "STORE", "STORE", "store", "NOPE", ""})
	rapid.Check(t, func(t *rapid.T) {
		args := rapid.SliceOfN(word, 0, 10).Draw(t, "arguments")
		payload := resp(append([]string{verb.Draw(t, "verb")}, args...)...)
		if rapid.IntRange(0, 3).Draw(t, "a likely STORE") == 3 {
			payload = resp(append([]string{"STORE", "k", "v", "m", rapid.SampledFrom([]string{"-", "1:2:n", "1:2"}).Draw(t, "version")}, args[:min(6, len(args))]...)...)
		}
		if rapid.IntRange(0, 9).Draw(t, "a likely DONE") == 9 {
			payload = resp(append([]string{"DONE", "k", "m"}, args[:min(4, len(args))]...)...)
		}
		if rapid.IntRange(0, 9).Draw(t, "damage") == 9 {
			i := rapid.IntRange(0, len(payload)-1).Draw(t, "at")
			payload[i] = rapid.Byte().Draw(t, "byte")
		}
		agree(t, payload)
	})
}

func FuzzParse(f *testing.F) {
	for _, tc := range malformedPayloads {
		f.Add([]byte(tc.payload))
	}
	for _, tc := range setOptions {
		f.Add(words("SET key value " + tc.options))
	}
	for _, tc := range storeCommands {
		f.Add(tc.payload)
	}
	for _, tc := range badCommands {
		f.Add(words(tc.command))
	}
	for _, tc := range hotPath {
		f.Add(tc.payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) { agree(t, payload) })
}
