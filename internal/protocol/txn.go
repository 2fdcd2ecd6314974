package protocol

import (
	"math"
	"strconv"
	"strings"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
)

// DefaultMaxTxnOperations is how many operations of each kind a TXN may have, unless the
// server is set otherwise; MostTxnOperations is the most that it may be set to, as all keys
// of a TXN are locked together.
const (
	DefaultMaxTxnOperations = 128
	MostTxnOperations       = 10_000
)

// TxnFault is why a TXN was refused before it was run, and because of which operation.
type TxnFault struct {
	Op    int // from 1; 0: the request as a whole
	Fault statestore.Fault
	Bound statestore.Bound // with QuotaExceeded
}

// TxnLimits are the bounds of a TXN.
type TxnLimits struct {
	MaxKey        int // bytes of a key
	MaxOperations int // of each kind
}

// words are those of a request that are still to be read; all of them are well-formed.
type words struct {
	b    []byte
	word []byte // the next one, which is read already; nil: there is none
	at   int    // behind it
	left int    // it included
}

func (w *words) next() (word []byte, ok bool) {
	if w.left == 0 {
		return nil, false
	}
	word = w.word
	w.left--
	w.read()
	return word, true
}

// read reads the next word, if there is one.
func (w *words) read() {
	if w.word = nil; w.left > 0 {
		w.word, w.at = nextBlob(w.b, w.at)
	}
}

// option reads the next word if it is the one given, in any case.
func (w *words) option(name string) bool {
	if len(w.word) != len(name) || !isWord(w.word, name) {
		return false
	}
	w.next()
	return true
}

// ParseTxn reads the payload of a TXN, for which Parse has found this verb, into t, which
// is empty; what it fills in are views of payload. It makes the checks of protocol,
// section 12, that need no key, and returns the first fault. The properties of the request
// are the caller's to fill in afterwards (Transaction.Stamp).
func ParseTxn(payload []byte, l TxnLimits, t *txn.Transaction) TxnFault {
	count, start := number(payload, 0, '*')
	w := words{b: payload, at: start, left: count}
	w.read()
	w.next() // TXN
	for op := 1; w.left > 0; op++ {
		if f := parseOperation(&w, op, l.MaxKey, t); f != statestore.None {
			return TxnFault{Op: op, Fault: f}
		}
		if t.MostOfAKind() > l.MaxOperations {
			return TxnFault{op, statestore.QuotaExceeded, statestore.MaxTxnOperations}
		}
	}
	return TxnFault{}
}

func parseOperation(w *words, op, maxKey int, t *txn.Transaction) statestore.Fault {
	word, _ := w.next()
	switch {
	case isWord(word, "if"):
		return parseIf(w, op, maxKey, t)
	case isWord(word, "set"):
		return parseTxnSet(w, op, maxKey, t)
	case isWord(word, "del"):
		return parseTxnDel(w, op, maxKey, t)
	case isWord(word, "once"):
		return parseOnce(w, op, maxKey, t)
	case isWord(word, "done"):
		return parseTxnDone(w, op, maxKey, t)
	case isWord(word, "publish"):
		return parsePublish(w, op, t)
	case isWord(word, "settle"):
		return parseSettle(w, op, t)
	case isWord(word, "cancel"):
		return parseTxnCancel(w, op, t)
	}
	return statestore.UnknownOperation
}

// key reads the key of an operation.
func (w *words) key(maxKey int) (key []byte, f statestore.Fault) {
	key, ok := w.next()
	switch {
	case !ok:
		return nil, statestore.WrongArgumentCount
	case len(key) == 0:
		return nil, statestore.EmptyKey
	case len(key) > maxKey:
		return nil, statestore.Syntax
	}
	return key, statestore.None
}

// parseIf reads key EXISTS | ABSENT | VALUE value | VER version | VER - | VER ^messageId.
func parseIf(w *words, op, maxKey int, t *txn.Transaction) (f statestore.Fault) {
	key, f := w.key(maxKey)
	if f != statestore.None {
		return f
	}
	c := txn.Condition{Op: op}
	word, _ := w.next()
	switch {
	case isWord(word, "exists"):
		c.Check = txn.Exists
	case isWord(word, "absent"):
		c.Check = txn.Absent
	case isWord(word, "value"), isWord(word, "ver"):
		operand, ok := w.next()
		switch {
		case !ok:
			return statestore.WrongArgumentCount
		case isWord(word, "value"):
			c.Check, c.Operand = txn.HasValue, operand
		default:
			if f := parseTxnVersion(operand, &c); f != statestore.None {
				return f
			}
		}
	case word == nil:
		return statestore.WrongArgumentCount
	default:
		return statestore.Syntax
	}
	return t.If(key, c)
}

// parseTxnVersion reads what VER demands. No version begins with a ^, which is no digit.
func parseTxnVersion(text []byte, c *txn.Condition) statestore.Fault {
	if len(text) > 0 && text[0] == '^' {
		c.Check, c.Operand = txn.MadeBy, text[1:]
		return validMessageID(c.Operand)
	}
	var check statestore.VersionCheck
	if f := parseVersionCheck(text, &check); f != statestore.None {
		return f
	}
	c.Check, c.Version = txn.AtVersion, check.At
	if check.Absent {
		c.Check = txn.Absent
	}
	return statestore.None
}

func validMessageID(id []byte) statestore.Fault {
	if len(id) == 0 || len(id) > MaxMessageID {
		return statestore.Syntax
	}
	return statestore.None
}

// parseTxnSet reads key value [PX ms] [FT token], the options in any order.
func parseTxnSet(w *words, op, maxKey int, t *txn.Transaction) (f statestore.Fault) {
	write := txn.Write{Op: op, Command: statestore.Command{Verb: statestore.Set}}
	cmd := &write.Command
	if cmd.Key, f = w.key(maxKey); f != statestore.None {
		return f
	}
	var ok bool
	if cmd.Value, ok = w.next(); !ok {
		return statestore.WrongArgumentCount
	}
	for {
		switch {
		case w.option("px"):
			text, ok := w.next()
			if !ok || cmd.ExpiryMs != 0 {
				return statestore.Syntax
			}
			if cmd.ExpiryMs, ok = milliseconds(text); !ok {
				return statestore.Syntax
			}
		case w.option("ft"):
			if f := parseToken(w, cmd); f != statestore.None {
				return f
			}
		default:
			return t.Then(write)
		}
	}
}

// parseTxnDel reads key [FT token].
func parseTxnDel(w *words, op, maxKey int, t *txn.Transaction) (f statestore.Fault) {
	write := txn.Write{Op: op, Command: statestore.Command{Verb: statestore.Del}}
	if write.Command.Key, f = w.key(maxKey); f != statestore.None {
		return f
	}
	for w.option("ft") {
		if f := parseToken(w, &write.Command); f != statestore.None {
			return f
		}
	}
	return t.Then(write)
}

// parseToken reads the operand of FT. Like __ft, what is no timestamp is judged with the
// write, by its rules.
func parseToken(w *words, cmd *statestore.Command) statestore.Fault {
	text, ok := w.next()
	if !ok || cmd.Token.State != statestore.Missing {
		return statestore.Syntax
	}
	cmd.Token = ParseStamp(text, true)
	return statestore.None
}

// MaxDigest is how long a digest of ONCE may be, in bytes.
const MaxDigest = 64

// message reads the key and the message ID of an operation.
func (w *words) message(maxKey int, once *txn.Once) (key []byte, f statestore.Fault) {
	if key, f = w.key(maxKey); f != statestore.None {
		return nil, f
	}
	var ok bool
	if once.Message, ok = w.next(); !ok {
		return nil, statestore.WrongArgumentCount
	}
	return key, validMessageID(once.Message)
}

// context reads the operand of CTX.
func (w *words) context(once *txn.Once) statestore.Fault {
	text, ok := w.next()
	if !ok || once.Context != nil {
		return statestore.Syntax
	}
	once.Context = text
	return statestore.None
}

// parseTxnDone reads key messageId [VER version] [CTX blob], the options in any order.
func parseTxnDone(w *words, op, maxKey int, t *txn.Transaction) statestore.Fault {
	once := txn.Once{Op: op, Done: true}
	key, f := w.message(maxKey, &once)
	for f == statestore.None {
		switch {
		case w.option("ver"):
			text, ok := w.next()
			if !ok || once.Version.Given {
				return statestore.Syntax
			}
			if f = parseVersionCheck(text, &once.Version); once.Version.Absent {
				return statestore.MalformedTimestamp
			}
			once.Version.Given = true
		case w.option("ctx"):
			f = w.context(&once)
		default:
			return t.Remember(key, once)
		}
	}
	return f
}

// parseOnce reads key messageId [OPEN] [KEEP ms] [CTX blob | DIGEST bytes], the options in any order.
func parseOnce(w *words, op, maxKey int, t *txn.Transaction) statestore.Fault {
	once := txn.Once{Op: op}
	key, f := w.message(maxKey, &once)
	if f != statestore.None {
		return f
	}
	for {
		switch {
		case w.option("keep"):
			text, ok := w.next()
			if !ok || once.KeepMs != 0 {
				return statestore.Syntax
			}
			if once.KeepMs, ok = milliseconds(text); !ok {
				return statestore.Syntax
			}
		case w.option("open"):
			if once.Open || once.Compare {
				return statestore.Syntax
			}
			once.Open = true
		case w.option("ctx"):
			if f := w.context(&once); f != statestore.None {
				return f
			}
		case w.option("digest"):
			digest, ok := w.next()
			if !ok || once.Open || once.Context != nil || len(digest) == 0 || len(digest) > MaxDigest {
				return statestore.Syntax
			}
			once.Context, once.Compare = digest, true
		default:
			return t.Remember(key, once)
		}
	}
}

// maxText is how long a string or binary of an MQTT packet may be, in bytes.
const maxText = 65_535

// parsePublish reads topic payload and the properties of the message, in any order, each but
// USER at most once.
func parsePublish(w *words, op int, t *txn.Transaction) statestore.Fault {
	p := txn.Publish{Op: op, QoS: 1}
	var ok bool
	if p.Topic, ok = w.next(); !ok {
		return statestore.WrongArgumentCount
	}
	if p.Payload, ok = w.next(); !ok {
		return statestore.WrongArgumentCount
	}
	if len(p.Topic) == 0 || len(p.Topic) > maxText {
		return statestore.InvalidTopic
	}
	var qos txn.Number
	for {
		f := statestore.None
		switch {
		case w.option("user"): // first, as a message has several
			var name, value []byte
			if f = w.text(&name); f == statestore.None {
				f = w.text(&value)
			}
			t.AddUser(&p, name, value)
		case w.option("qos"):
			f = w.number(&qos, 2)
			p.QoS = byte(qos.Value)
		case w.option("retain"):
			if p.Retain {
				return statestore.Syntax
			}
			p.Retain = true
		case w.option("expiry"):
			f = w.number(&p.Expiry, math.MaxUint32)
		case w.option("format"):
			f = w.number(&p.Format, 1)
		case w.option("type"):
			f = w.text(&p.ContentType)
		case w.option("response"):
			f = w.text(&p.ResponseTopic)
		case w.option("correlation"):
			f = w.text(&p.CorrelationData)
		default:
			t.Publishes = append(t.Publishes, p)
			return statestore.None
		}
		if f != statestore.None {
			return f
		}
	}
}

// number reads the operand of an option that has not been given before: a decimal up to
// most.
func (w *words) number(n *txn.Number, most uint64) statestore.Fault {
	text, ok := w.next()
	value, err := strconv.ParseUint(string(text), 10, 32)
	if !ok || n.Given || err != nil || value > most {
		return statestore.Syntax
	}
	*n = txn.Number{Given: true, Value: uint32(value)}
	return statestore.None
}

// text is the same for a string or binary.
func (w *words) text(into *[]byte) statestore.Fault {
	text, ok := w.next()
	if !ok || *into != nil || len(text) > maxText {
		return statestore.Syntax
	}
	*into = text
	return statestore.None
}

// parseSettle reads a packet identifier.
func parseSettle(w *words, op int, t *txn.Transaction) statestore.Fault {
	if w.left == 0 {
		return statestore.WrongArgumentCount
	}
	var id txn.Number
	if f := w.number(&id, math.MaxUint16); f != statestore.None {
		return f
	}
	return t.Settle(txn.Settle{Op: op, PacketID: uint16(id.Value)})
}

// parseTxnCancel reads the ID of a timer.
func parseTxnCancel(w *words, op int, t *txn.Transaction) statestore.Fault {
	id, ok := w.next()
	switch {
	case !ok:
		return statestore.WrongArgumentCount
	case !validTimerID(id):
		return statestore.Syntax
	}
	t.Cancels = append(t.Cancels, txn.Cancel{Op: op, ID: id})
	return statestore.None
}

// appendTransacted appends the reply to a TXN that has no error (protocol, section 12).
func appendTransacted(dst []byte, r *statestore.Reply) []byte {
	if r.Count == statestore.ConditionFailed {
		dst = appendHead(dst, '*', 4)
		dst = appendHead(dst, ':', r.Count)
		dst = appendHead(dst, ':', r.Op)
		if r.Value == nil {
			dst = appendNil(dst)
		} else {
			dst = appendBlob(dst, r.Value)
		}
		return appendVersionOrNil(dst, r.Version)
	}
	if r.Count == statestore.AlreadyDone {
		if r.Op == 0 { // it had one ONCE
			return appendVersionOrNil(appendHead(appendHead(dst, '*', 2), ':', r.Count), r.Version)
		}
		dst = appendVersionOrNil(appendHead(appendHead(dst, '*', 3), ':', r.Count), r.Version)
		return appendHead(dst, ':', r.Op)
	}
	if r.Ended == nil {
		dst = appendHead(dst, '*', 2)
	} else {
		dst = appendHead(dst, '*', 3)
	}
	dst = appendHead(dst, ':', r.Count)
	dst = appendHead(dst, '*', len(r.Values))
	for i := range r.Values {
		dst = appendVersionOrNil(dst, r.Values[i].Version)
	}
	if r.Ended == nil {
		return dst
	}
	dst = appendHead(dst, '*', len(r.Ended))
	for _, ended := range r.Ended {
		n := 0
		if ended {
			n = 1
		}
		dst = appendHead(dst, ':', n)
	}
	return dst
}

func appendVersionOrNil(dst []byte, v hlc.Timestamp) []byte {
	if v.IsZero() {
		return appendNil(dst)
	}
	return appendVersion(dst, v)
}

// operationPrefix begins the text of an error of TXN that is about one operation:
// "operation 3: not authorized".
const operationPrefix = "operation "

// SplitOperation parts the text of an error into the number of the operation that it is
// about, 0 if none, and what it says.
func SplitOperation(text string) (op int, rest string) {
	digits, found := strings.CutPrefix(text, operationPrefix)
	if !found {
		return 0, text
	}
	digits, rest, found = strings.Cut(digits, ": ")
	if op, err := strconv.Atoi(digits); found && err == nil && op > 0 {
		return op, rest
	}
	return 0, text
}
