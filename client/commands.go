package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// Value is what a key holds.
type Value struct {
	Bytes   []byte        // never nil; the caller's to keep and change
	Version hlc.Timestamp // when it was set, as the server counts time
}

// Get reads a key. found is false if there is no such key.
func (c *Client) Get(ctx context.Context, key string) (v Value, found bool, err error) {
	return c.get(ctx, "get", key)
}

// get is Get as a part of an operation.
func (c *Client) get(ctx context.Context, op, key string) (v Value, found bool, err error) {
	r := newRequest(op, key, []byte("GET"), []byte(key))
	answer, err := c.do(ctx, r)
	if err != nil {
		return Value{}, false, err
	}
	switch answer.Kind {
	case protocol.Blob:
		return Value{Bytes: answer.Blob, Version: answer.Version}, true, nil
	case protocol.Nil:
		return Value{}, false, nil
	}
	return Value{}, false, r.unexpected(&answer)
}

// SetResult is the outcome of [Client.Set].
type SetResult struct {
	// Version is the key's new version. With [ErrNotApplied] it is the version that the
	// key has: zero if there is no such key.
	Version hlc.Timestamp
}

// Set writes a key. The error is [ErrNotApplied] if a condition given as an option is
// not met; then nothing was changed.
//
// An error that is [ErrUnknownOutcome] means that the write may have been
// carried out.
func (c *Client) Set(ctx context.Context, key string, value []byte, opts ...SetOption) (SetResult, error) {
	var a setArgs
	for _, o := range opts {
		o.applySet(&a)
	}
	if err := a.check(); err != nil {
		return SetResult{}, &Error{Op: "set", Key: key, Err: err}
	}
	if a.condition == ifValue {
		return c.setIfValue(ctx, key, value, a)
	}
	return c.set(ctx, key, value, &a)
}

// set sends one SET.
func (c *Client) set(ctx context.Context, key string, value []byte, a *setArgs) (SetResult, error) {
	r := &request{op: "set", key: key}
	r.Value = value
	r.Payload, r.Behind = protocol.CommandAround(setValue, a.command(key, value)...)
	r.asWrite(c.cfg, &a.writeArgs)
	answer, err := c.do(ctx, r)
	if err != nil {
		return SetResult{}, err
	}
	switch {
	case answer.Kind == protocol.Simple:
		return SetResult{Version: answer.Version}, nil
	case answer.NotApplied():
		return SetResult{Version: answer.Version}, r.notApplied(answer.Version)
	}
	return SetResult{}, r.unexpected(&answer)
}

// setIfValue sets a key that has the value a.compare. It reads the key and makes the
// SET conditional on the version that it has read, so the value cannot have changed
// when the SET takes effect. A key that has changed in between is read again: each
// further round means that another client's write succeeded, and the context bounds them.
func (c *Client) setIfValue(ctx context.Context, key string, value []byte, a setArgs) (SetResult, error) {
	ctx, cancel := c.links.Bound(ctx)
	defer cancel()
	anyVersion, required := a.versions == 0, a.version
	a.condition, a.versions = "", 1
	for {
		v, found, err := c.get(ctx, "set", key)
		switch {
		case err != nil:
			return SetResult{}, err
		case !found, !bytes.Equal(v.Bytes, a.compare), !anyVersion && v.Version != required:
			r := request{op: "set", key: key}
			return SetResult{Version: v.Version}, r.notApplied(v.Version)
		}
		a.version = v.Version
		result, err := c.set(ctx, key, value, &a)
		if !anyVersion || !errors.Is(err, ErrNotApplied) {
			return result, err
		}
	}
}

// setValue is which argument of a SET is the value.
const setValue = 2

// command lists the arguments of a SET. NEX comes first among the options: its
// operand is recognised by the odd number of arguments that follow (protocol,
// section 3).
func (a *setArgs) command(key string, value []byte) [][]byte {
	args := [][]byte{[]byte("SET"), []byte(key), value}
	switch a.condition {
	case ifAbsent:
		args = append(args, []byte("NX"))
	case ifAbsentOrEqual:
		args = append(args, []byte("NEX"))
	case ifAbsentOrValue:
		args = append(args, []byte("NEX"), a.compare)
	}
	if a.expires {
		args = append(args, []byte("PX"), strconv.AppendInt(nil, ceilMs(a.expiry), 10))
	}
	if a.versions > 0 {
		args = append(args, []byte("VER"), versionOrAbsent(a.version))
	}
	return args
}

// versionOrAbsent is a version as VER and STORE take it: "-" means that there must be
// no such key.
func versionOrAbsent(v hlc.Timestamp) []byte {
	if v.IsZero() {
		return []byte("-")
	}
	return v.Append(nil)
}

func ceilMs(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}

// Deletion is the outcome of [Client.Del].
type Deletion struct {
	// Deleted: this request has deleted the key. Without it, and without an error,
	// there was no such key.
	Deleted bool
	// Version is that of the deleted value. With [ErrNotApplied] it is the version that
	// the key has.
	Version hlc.Timestamp
}

// Del deletes a key. A key that doesn't exist is no error, with or without a condition:
// Deleted is false then. The error is [ErrNotApplied] if the key exists with another value
// than [IfValue] says.
//
// An error that is [ErrUnknownOutcome] means that the deletion may have been
// carried out.
func (c *Client) Del(ctx context.Context, key string, opts ...DelOption) (Deletion, error) {
	var a delArgs
	for _, o := range opts {
		o.applyDel(&a)
	}
	if err := a.check(); err != nil {
		return Deletion{}, &Error{Op: "del", Key: key, Err: err}
	}
	r := newRequest("del", key, a.command(key)...)
	r.asWrite(c.cfg, &a.writeArgs)
	answer, err := c.do(ctx, r)
	if err != nil {
		return Deletion{}, err
	}
	switch {
	case answer.NotApplied():
		return Deletion{Version: answer.Version}, r.notApplied(answer.Version)
	case answer.Kind == protocol.Int && answer.Int == 0:
		return Deletion{}, nil
	case answer.Kind == protocol.Int && answer.Int > 0:
		return Deletion{Deleted: true, Version: answer.Version}, nil
	}
	return Deletion{}, r.unexpected(&answer)
}

func (a *delArgs) command(key string) [][]byte {
	if a.values > 0 {
		return [][]byte{[]byte("VDEL"), []byte(key), a.value}
	}
	return [][]byte{[]byte("DEL"), []byte(key)}
}

func (r *request) asWrite(cfg *config, a *writeArgs) {
	r.write = true
	r.retry = cfg.retryWrites || a.retry
	r.Token = a.token
}

// notApplied is the error for a condition that is not met by a key of this version.
func (r *request) notApplied(version hlc.Timestamp) error {
	if version.IsZero() {
		return r.wrap(fmt.Errorf("%w: there is no such key", ErrNotApplied))
	}
	return r.wrap(fmt.Errorf("%w: the key has version %v", ErrNotApplied, version))
}
