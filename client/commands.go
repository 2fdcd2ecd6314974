package client

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"holdfast/hlc"
	"holdfast/internal/protocol"
)

// Value is what a key holds.
type Value struct {
	Bytes   []byte        // never nil; the caller's to keep and change
	Version hlc.Timestamp // when it was set, as the server counts time
}

// Get reads a key. found is false if there is no such key.
func (c *Client) Get(ctx context.Context, key string) (v Value, found bool, err error) {
	r := newRequest("get", key, []byte("GET"), []byte(key))
	answer, err := c.do(ctx, r)
	if err != nil {
		return Value{}, false, err
	}
	switch answer.Kind {
	case protocol.Blob:
		return Value{Bytes: answer.Blob, Version: answer.version}, true, nil
	case protocol.Nil:
		return Value{}, false, nil
	}
	return Value{}, false, r.unexpected(&answer)
}

// Set writes a key. applied is false if a condition given as an option was not
// met; then nothing was changed. version is the key's new version, or, if not
// applied, the version that it has: zero if there is no such key.
//
// An error that is [ErrUnknownOutcome] means that the write may have been
// carried out.
func (c *Client) Set(ctx context.Context, key string, value []byte, opts ...SetOption) (version hlc.Timestamp, applied bool, err error) {
	var a setArgs
	for _, o := range opts {
		o.applySet(&a)
	}
	if err := a.check(); err != nil {
		return hlc.Timestamp{}, false, &Error{Op: "set", Key: key, Err: err}
	}
	r := newRequest("set", key, a.command(key, value)...)
	r.asWrite(c.cfg, &a.writeArgs)
	answer, err := c.do(ctx, r)
	if err != nil {
		return hlc.Timestamp{}, false, err
	}
	switch {
	case answer.Kind == protocol.Simple:
		return answer.version, true, nil
	case answer.NotApplied():
		return answer.version, false, nil
	}
	return hlc.Timestamp{}, false, r.unexpected(&answer)
}

func (a *setArgs) check() error {
	switch {
	case a.nx && a.nex:
		return fmt.Errorf("%w: NX and NEX exclude each other", ErrInvalidOption)
	case a.versions > 1:
		return fmt.Errorf("%w: more than one IfVersion or IfAbsent", ErrInvalidOption)
	case a.expires && a.expiry <= 0:
		return fmt.Errorf("%w: expiry %v: it must be positive", ErrInvalidOption, a.expiry)
	}
	return nil
}

// command lists the arguments of a SET. NEX comes first among the options: its
// operand is recognised by the odd number of arguments that follow (protocol,
// section 3).
func (a *setArgs) command(key string, value []byte) [][]byte {
	args := [][]byte{[]byte("SET"), []byte(key), value}
	switch {
	case a.nx:
		args = append(args, []byte("NX"))
	case a.nex:
		args = append(args, []byte("NEX"))
		if a.compare != nil {
			args = append(args, a.compare)
		}
	}
	if a.expires {
		args = append(args, []byte("PX"), strconv.AppendInt(nil, ceilMs(a.expiry), 10))
	}
	switch {
	case a.absent:
		args = append(args, []byte("VER"), []byte("-"))
	case a.versions > 0:
		args = append(args, []byte("VER"), a.version.Append(nil))
	}
	return args
}

func ceilMs(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}

// Deletion is the outcome of [Client.Del] and [Client.VDel].
type Deletion struct {
	Deleted bool          // the key is gone by this very request
	Found   bool          // the key existed; without Deleted: it has another value
	Version hlc.Timestamp // of the deleted, or of the other, value; zero if not Found
}

// Del deletes a key.
func (c *Client) Del(ctx context.Context, key string, opts ...DelOption) (Deletion, error) {
	return c.remove(ctx, newRequest("del", key, []byte("DEL"), []byte(key)), opts)
}

// VDel deletes a key only if it has this value.
func (c *Client) VDel(ctx context.Context, key string, value []byte, opts ...DelOption) (Deletion, error) {
	return c.remove(ctx, newRequest("vdel", key, []byte("VDEL"), []byte(key), value), opts)
}

func (c *Client) remove(ctx context.Context, r *request, opts []DelOption) (Deletion, error) {
	var a delArgs
	for _, o := range opts {
		o.applyDel(&a)
	}
	r.asWrite(c.cfg, &a.writeArgs)
	answer, err := c.do(ctx, r)
	if err != nil {
		return Deletion{}, err
	}
	switch {
	case answer.NotApplied():
		return Deletion{Found: true, Version: answer.version}, nil
	case answer.Kind == protocol.Int && answer.Int == 0:
		return Deletion{}, nil
	case answer.Kind == protocol.Int && answer.Int > 0:
		return Deletion{Deleted: true, Found: true, Version: answer.version}, nil
	}
	return Deletion{}, r.unexpected(&answer)
}

func (r *request) asWrite(cfg *config, a *writeArgs) {
	r.write = true
	r.retry = cfg.retryWrites || a.retry
	r.token = a.token
}
