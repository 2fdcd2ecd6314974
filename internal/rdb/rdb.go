package rdb

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"iter"
	"strconv"
	"time"
)

// Entry is a key of a dump.
type Entry struct {
	DB      uint64 // the number of the database that has the key
	Key     []byte
	Type    Type
	Value   []byte    // of a string; nil for other types
	Expires time.Time // zero: never

	// TooLong is how many bytes the key has, if Key is nil, or the string: more than Options.Most, so that it
	// was read over; 0: it is not too long.
	TooLong uint64
}

// Options of Read.
type Options struct {
	// Size of the file in bytes lets Read refuse a length beyond the end before it reads anything of
	// that length; negative: it is not known.
	Size int64
	// Most is the longest key, and the longest string, in bytes, that is wanted. A longer one, also one that is
	// compressed, is read over and takes no memory. 0: MaxString.
	Most uint64
}

// Type is the type of a key, by the name that Redis's command TYPE has for it: "module" is that
// of all types that modules define.
type Type string

// The types.
const (
	String Type = "string"
	List   Type = "list"
	Set    Type = "set"
	ZSet   Type = "zset"
	Hash   Type = "hash"
	Stream Type = "stream"
	Module Type = "module"
)

// MaxString is the longest string that is read, in bytes: that of Redis.
const MaxString = 512 << 20

// maxSkipped is the longest string that is read over, in bytes. Lists, sets and hashes may be one
// string, in a form (ziplist, listpack, intset) whose own length has 32 bits.
const maxSkipped uint64 = 1<<32 - 1

// ErrNotADump says that a file does not begin as a dump does.
var ErrNotADump = errors.New("not a dump of Redis: it does not begin with REDIS and four digits")

// Read gives the keys of a dump in the order of the file. An error comes last; it says at which
// byte of the file the reader was. The checksum at the end of the file is compared, if it has one.
//
// It allocates no more than a few times what the file has, and for a string no more than about four
// times Options.Most; of a file whose size it knows, twice.
func Read(r io.Reader, o Options) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		d := &decoder{in: bufio.NewReaderSize(r, 1<<16), size: o.Size, most: MaxString}
		if o.Most > 0 {
			d.most = min(o.Most, MaxString)
		}
		more, err := true, d.header()
		for more && err == nil {
			var e Entry
			if e, more, err = d.next(); more && err == nil && !yield(e, nil) {
				return
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the dump is cut off")
		}
		if err != nil {
			yield(Entry{}, fmt.Errorf("byte %d: %w", d.read, err))
		}
	}
}

// decoder reads a dump. Its methods that read return the first error of in.
type decoder struct {
	in      *bufio.Reader
	size    int64  // of the file; negative: it is not known
	most    uint64 // bytes of a string that is wanted
	read    int64  // bytes so far
	sum     uint64 // the checksum of these
	version int
	db      uint64
	expires time.Time // of the next key
	scratch [16]byte
}

// jones is the polynomial of Redis's checksum, reversed.
var jones = crc64.MakeTable(0x95ac9329ac4bc9b5)

// count adds bytes to the checksum. Redis does not invert it, as package crc64 does.
func (d *decoder) count(p []byte) {
	d.read += int64(len(p))
	d.sum = ^crc64.Update(^d.sum, jones, p)
}

func (d *decoder) header() error {
	var text [9]byte
	if _, err := io.ReadFull(d.in, text[:]); err != nil {
		return ErrNotADump
	}
	version, err := strconv.ParseUint(string(text[5:]), 10, 16)
	if string(text[:5]) != "REDIS" || err != nil {
		return ErrNotADump
	}
	d.version = int(version)
	d.count(text[:])
	return nil
}

// Opcodes: what else than keys a dump has.
const (
	opSlotInfo     = 0xF4 // of a node of a cluster
	opFunction     = 0xF5
	opModuleAux    = 0xF7
	opIdle         = 0xF8
	opFrequency    = 0xF9
	opAux          = 0xFA
	opResizeDB     = 0xFB
	opExpireMillis = 0xFC
	opExpire       = 0xFD
	opSelectDB     = 0xFE
	opEnd          = 0xFF
)

// next reads up to the next key; more says that there was one.
func (d *decoder) next() (e Entry, more bool, err error) {
	for {
		op, err := d.byte()
		if err != nil {
			return e, false, err
		}
		switch op {
		case opEnd:
			return e, false, d.end()
		case opSelectDB:
			d.db, err = d.length()
		case opExpire:
			var b []byte
			if b, err = d.fixed(4); err == nil {
				d.expires = time.Unix(int64(int32(binary.LittleEndian.Uint32(b))), 0)
			}
		case opExpireMillis:
			var b []byte
			if b, err = d.fixed(8); err == nil {
				d.expires = expiryMillis(int64(binary.LittleEndian.Uint64(b)))
			}
		case opResizeDB:
			err = d.skipLengths(2)
		case opSlotInfo:
			err = d.skipLengths(3)
		case opIdle:
			err = d.skipLengths(1)
		case opFrequency:
			_, err = d.fixed(1)
		case opAux:
			err = d.skipStrings(2)
		case opFunction:
			err = d.skipStrings(1)
		case opModuleAux:
			err = d.skipModule()
		default:
			return d.entry(op)
		}
		if err != nil {
			return e, false, err
		}
	}
}

// expiryMillis is the time of an expiry. Redis takes -1 for none.
func expiryMillis(ms int64) time.Time {
	if ms == -1 {
		return time.Time{}
	}
	return time.UnixMilli(max(ms, 0)) // one of them below 0 would be the zero Time
}

func (d *decoder) entry(encoding byte) (e Entry, more bool, err error) {
	e.DB, e.Expires = d.db, d.expires
	d.expires = time.Time{}
	if encoding == oldModule {
		return e, false, errors.New("a key has the form that modules had before Redis 4.0, which only its module can read: delete the key, or write the dump with a newer Redis")
	}
	how, known := encodings[encoding]
	if !known {
		return e, false, fmt.Errorf("type %d of a dump of version %d is not known", encoding, d.version)
	}
	if e.Key, e.TooLong, err = d.string(); err != nil {
		return e, false, err
	}
	switch e.Type = how.of; {
	case e.Type != String:
		err = how.skip(d)
	case e.TooLong > 0:
		err = d.skipString()
	default:
		e.Value, e.TooLong, err = d.string()
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("key %.100q, a %s: %w", e.Key, e.Type, err)
	}
	return e, err == nil, err
}

// end reads the checksum, which version 5 has begun with; 0: the server writes none.
func (d *decoder) end() error {
	if d.version < 5 {
		return nil
	}
	is := d.sum
	b, err := d.fixed(8)
	if err != nil {
		return err
	}
	if want := binary.LittleEndian.Uint64(b); want != 0 && want != is {
		return fmt.Errorf("the checksum is %016x, and that of what was read %016x: the dump is damaged", want, is)
	}
	return nil
}

func (d *decoder) byte() (byte, error) {
	b, err := d.fixed(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// fixed reads n bytes, up to 16, which are valid until the next call.
func (d *decoder) fixed(n int) ([]byte, error) {
	b := d.scratch[:n]
	if _, err := io.ReadFull(d.in, b); err != nil {
		return nil, err
	}
	d.count(b)
	return b, nil
}

// left says whether the file may have n more bytes: items of what, each of a byte at least.
func (d *decoder) left(n uint64, what string) error {
	if d.size >= 0 && n > uint64(max(d.size-d.read, 0)) {
		return fmt.Errorf("%d %s, where the file has %d more bytes", n, what, max(d.size-d.read, 0))
	}
	return nil
}

// bytes reads n bytes. It allocates as they come: a damaged length must not make it allocate more
// than the file has.
func (d *decoder) bytes(n uint64) ([]byte, error) {
	if n > MaxString {
		return nil, fmt.Errorf("a string of %d bytes: Redis has none above %d", n, MaxString)
	}
	if err := d.left(n, "bytes of a string"); err != nil {
		return nil, err
	}
	if n <= 1<<16 || d.size >= 0 {
		b := make([]byte, n)
		got, err := io.ReadFull(d.in, b)
		d.count(b[:got])
		return b, err
	}
	var b bytes.Buffer
	_, err := io.CopyN(&b, d.in, int64(n))
	d.count(b.Bytes())
	return b.Bytes(), err
}

// skip reads over n bytes.
func (d *decoder) skip(n uint64) error {
	if n > maxSkipped {
		return fmt.Errorf("a string of %d bytes: Redis has none above %d", n, maxSkipped)
	}
	if err := d.left(n, "bytes of a string"); err != nil {
		return err
	}
	for n > 0 {
		b, err := d.in.Peek(int(min(n, 1<<12)))
		if len(b) == 0 {
			return err
		}
		d.count(b)
		n -= uint64(len(b))
		_, _ = d.in.Discard(len(b))
	}
	return nil
}

// Encodings of strings, in place of their length.
const (
	asInt8 = iota
	asInt16
	asInt32
	asLZF
)

// prefix reads a length, or says that a string with an encoding follows.
func (d *decoder) prefix() (n uint64, encoded bool, err error) {
	first, err := d.byte()
	if err != nil {
		return 0, false, err
	}
	var b []byte
	switch first >> 6 {
	case 0:
		return uint64(first & 0x3F), false, nil
	case 1:
		second, err := d.byte()
		return uint64(first&0x3F)<<8 | uint64(second), false, err
	case 3:
		return uint64(first & 0x3F), true, nil
	}
	switch first {
	case 0x80:
		if b, err = d.fixed(4); err == nil {
			n = uint64(binary.BigEndian.Uint32(b))
		}
	case 0x81:
		if b, err = d.fixed(8); err == nil {
			n = binary.BigEndian.Uint64(b)
		}
	default:
		err = fmt.Errorf("a length begins with %#02x", first)
	}
	return n, false, err
}

func (d *decoder) length() (uint64, error) {
	n, encoded, err := d.prefix()
	if err == nil && encoded {
		err = errors.New("a string, where there must be a length")
	}
	return n, err
}

// string reads a string. Of one that is longer than is wanted it returns the length only.
func (d *decoder) string() (b []byte, tooLong uint64, err error) {
	n, encoded, err := d.prefix()
	switch {
	case err != nil:
		return nil, 0, err
	case !encoded && n > d.most && n <= MaxString:
		return nil, n, d.skip(n)
	case !encoded:
		b, err = d.bytes(n)
	case n == asLZF:
		return d.packed()
	default:
		b, err = d.integer(n)
	}
	return b, 0, err
}

// integer reads a string that is written as a number.
func (d *decoder) integer(encoding uint64) ([]byte, error) {
	var n int64
	switch encoding {
	case asInt8:
		b, err := d.fixed(1)
		if err != nil {
			return nil, err
		}
		n = int64(int8(b[0]))
	case asInt16:
		b, err := d.fixed(2)
		if err != nil {
			return nil, err
		}
		n = int64(int16(binary.LittleEndian.Uint16(b)))
	case asInt32:
		b, err := d.fixed(4)
		if err != nil {
			return nil, err
		}
		n = int64(int32(binary.LittleEndian.Uint32(b)))
	default:
		return nil, fmt.Errorf("a string has the unknown encoding %d", encoding)
	}
	return strconv.AppendInt(nil, n, 10), nil
}

// packed reads a compressed string.
func (d *decoder) packed() (b []byte, tooLong uint64, err error) {
	packed, err := d.length()
	if err != nil {
		return nil, 0, err
	}
	size, err := d.length()
	switch {
	case err != nil:
		return nil, 0, err
	case size > d.most && size <= MaxString:
		return nil, size, d.skip(packed)
	case size <= MaxString && packed > size+size/maxLiteral+1:
		return nil, 0, fmt.Errorf("%d bytes of a string that would have %d: %w", packed, size, errPacked)
	}
	if b, err = d.bytes(packed); err != nil {
		return nil, 0, err
	}
	b, err = unpack(b, size)
	return b, 0, err
}

// maxLiteral is how many bytes one byte of a compressed string announces at most that follow as they are.
// So a compressed string of n bytes is not longer than n + n/maxLiteral + 1.
const maxLiteral = 32

func (d *decoder) skipString() error {
	n, encoded, err := d.prefix()
	if err != nil {
		return err
	}
	if !encoded {
		return d.skip(n)
	}
	switch n {
	case asInt8, asInt16, asInt32:
		_, err = d.fixed(1 << n)
		return err
	case asLZF:
		if n, err = d.length(); err != nil {
			return err
		}
		if err = d.skipLengths(1); err != nil {
			return err
		}
		return d.skip(n)
	}
	return fmt.Errorf("a string has the unknown encoding %d", n)
}

func (d *decoder) skipStrings(n uint64) error {
	for ; n > 0; n-- {
		if err := d.skipString(); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) skipLengths(n int) error {
	for ; n > 0; n-- {
		if _, err := d.length(); err != nil {
			return err
		}
	}
	return nil
}

var errPacked = errors.New("a compressed string is damaged")

// unpack undoes the compression LZF, in which a byte below 32 is followed by as many bytes and one
// more, and any other refers to bytes that have come already. It allocates nothing before it knows
// that size, which the dump claims, is what comes out.
func unpack(in []byte, size uint64) ([]byte, error) {
	if size > MaxString {
		return nil, fmt.Errorf("a compressed string that would have %d bytes: Redis has none above %d", size, MaxString)
	}
	total := uint64(0)
	for rest := in; len(rest) > 0; {
		part, n, ok := lzfPart(rest)
		if !ok || part.literal == nil && part.back > total {
			return nil, errPacked
		}
		total, rest = total+uint64(part.length), rest[n:]
	}
	if total != size {
		return nil, errPacked
	}
	out := make([]byte, 0, size)
	for len(in) > 0 {
		part, n, _ := lzfPart(in)
		in = in[n:]
		if out = append(out, part.literal...); part.literal != nil {
			continue
		}
		for range part.length { // it may overlap what it makes
			out = append(out, out[len(out)-int(part.back)])
		}
	}
	return out, nil
}

// lzfRun is a part of a compressed string: bytes as they are, or a reference.
type lzfRun struct {
	literal []byte
	length  int
	back    uint64 // of a reference: how many bytes before the end it begins
}

// lzfPart reads the first part, which takes n bytes.
func lzfPart(in []byte) (part lzfRun, n int, ok bool) {
	control := int(in[0])
	if control < maxLiteral {
		if n = control + 2; len(in) < n {
			return part, 0, false
		}
		return lzfRun{literal: in[1:n], length: n - 1}, n, true
	}
	n, part.length = 1, control>>5
	if part.length == 7 {
		if len(in) < 2 {
			return part, 0, false
		}
		n, part.length = 2, 7+int(in[1])
	}
	if len(in) <= n {
		return part, 0, false
	}
	part.length += 2
	part.back = uint64(control&0x1F)<<8 + uint64(in[n]) + 1
	return part, n + 1, true
}
