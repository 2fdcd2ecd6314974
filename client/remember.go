package client

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// MessageStatus says what the store knows of a message.
type MessageStatus uint8

const (
	NewMessage MessageStatus = statestore.NewMessage // never stored, or so long ago that it is forgotten
	Duplicate  MessageStatus = statestore.Duplicate  // stored; its outputs may not all have been published
	Confirmed  MessageStatus = statestore.Confirmed  // stored, and all its outputs were published
)

var statusNames = [...]string{NewMessage: "new", Duplicate: "duplicate", Confirmed: "confirmed"}

// String returns "new", "duplicate" or "confirmed".
func (s MessageStatus) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("status %d", s)
}

// LoadResult is what [Client.Load] finds.
type LoadResult struct {
	Status MessageStatus
	// State is what to process the message on. NewMessage: the key's value. Duplicate:
	// the value before the message was first processed. Nil if there was none,
	// and for Confirmed.
	State []byte
	// Captured is what the Store of a Duplicate captured (see the option [Captured]), or
	// what the Done of a Confirmed message left; nil: nothing.
	Captured []byte
	// Version is, for NewMessage, that of the key, zero if it doesn't exist: the argument
	// of Store. Otherwise it is the version that the message produced.
	Version hlc.Timestamp
}

// Load asks what is known of a message that concerns a key, an extension of
// Holdfast (protocol, section 8). A message is identified by its key and its ID, which
// must not be empty.
func (c *Client) Load(ctx context.Context, key, messageID string) (LoadResult, error) {
	r := newRequest("load", key, []byte("LOAD"), []byte(key), []byte(messageID))
	answer, err := c.do(ctx, r)
	if err != nil {
		return LoadResult{}, err
	}
	if m, ok := loadResult(&answer); ok {
		return m, nil
	}
	return LoadResult{}, r.unexpected(&answer)
}

// loadResult takes *3 :n state captured apart.
func loadResult(a *reply) (m LoadResult, ok bool) {
	if a.Kind != protocol.Array || len(a.Array) != 3 {
		return LoadResult{}, false
	}
	status, state, captured := &a.Array[0], &a.Array[1], &a.Array[2]
	if status.Kind != protocol.Int || status.Int < int64(NewMessage) || status.Int > int64(Confirmed) || !blobOrNil(state) || !blobOrNil(captured) {
		return LoadResult{}, false
	}
	return LoadResult{Status: MessageStatus(status.Int), State: state.Blob, Captured: captured.Blob, Version: a.Version}, true
}

func blobOrNil(r *protocol.Response) bool { return r.Kind == protocol.Blob || r.Kind == protocol.Nil }

// StoreOutcome says what became of a [Client.Store].
type StoreOutcome uint8

const (
	// Stored: the state is set and the message remembered.
	Stored StoreOutcome = iota + 1
	// AlreadyStored: the message had been stored before, perhaps by an earlier
	// try of this very call whose answer was lost. Nothing was changed.
	AlreadyStored
	// VersionConflict: the key has another version, because another client has written
	// it. Nothing was changed: Load again.
	VersionConflict
)

var outcomeNames = [...]string{Stored: "stored", AlreadyStored: "already stored", VersionConflict: "version conflict"}

// String returns "stored", "already stored" or "version conflict".
func (o StoreOutcome) String() string {
	if int(o) < len(outcomeNames) && o != 0 {
		return outcomeNames[o]
	}
	return fmt.Sprintf("outcome %d", o)
}

// StoreResult is the outcome of [Client.Store].
type StoreResult struct {
	Outcome StoreOutcome
	// Version is the one that the message produced, now or before; after a
	// VersionConflict the key's, zero if it doesn't exist.
	Version hlc.Timestamp
	// Keep is for how long the message is remembered, or after a VersionConflict would
	// be, if that is not what the option [Keep] asked for: the server has a maximum. 0: as
	// asked. (A server older than this client does not say.)
	Keep time.Duration
}

// Store sets a key to the state that a message has led to, and remembers the
// message with the state that it replaces, both or neither: only if the key still
// has the version on which the message was processed, which is LoadResult.Version of
// a NewMessage. The zero version means that the key must not exist. The key loses any
// expiry that it had.
//
// An error that is [ErrUnknownOutcome] means that it may have been carried out;
// repeating it, or starting over with Load, is safe, and [RetryWrites] makes the
// client do so. An extension of Holdfast (protocol, section 8).
func (c *Client) Store(ctx context.Context, key string, state []byte, messageID string, version hlc.Timestamp, opts ...StoreOption) (StoreResult, error) {
	var a storeArgs
	for _, o := range opts {
		o.applyStore(&a)
	}
	if err := a.check(); err != nil {
		return StoreResult{}, &Error{Op: "store", Key: key, Err: err}
	}
	r := newRequest("store", key, a.command(key, state, messageID, version)...)
	r.asWrite(c.cfg, &a.writeArgs)
	answer, err := c.do(ctx, r)
	if err != nil {
		return StoreResult{}, err
	}
	switch {
	case answer.Kind == protocol.Simple:
		return StoreResult{Stored, answer.Version, answer.Keep}, nil
	case answer.NotApplied():
		return StoreResult{VersionConflict, answer.Version, answer.Keep}, nil
	case answer.Kind == protocol.Int && answer.Int == 0:
		return StoreResult{Outcome: AlreadyStored, Version: answer.Version}, nil
	}
	return StoreResult{}, r.unexpected(&answer)
}

func (a *storeArgs) command(key string, state []byte, messageID string, version hlc.Timestamp) [][]byte {
	args := [][]byte{[]byte("STORE"), []byte(key), state, []byte(messageID), versionOrAbsent(version)}
	if a.captured != nil {
		args = append(args, []byte("CTX"), a.captured)
	}
	if a.keeps {
		args = append(args, []byte("KEEP"), strconv.AppendInt(nil, ceilMs(a.keep), 10))
	}
	switch {
	case a.deletes:
		args = append(args, []byte("DEL"))
	case a.expires:
		args = append(args, []byte("PX"), strconv.AppendInt(nil, ceilMs(a.expiry), 10))
	}
	return args
}

// Done says that all outputs of a message are published: what was remembered with
// it is dropped, and only that it was processed stays, with what [Leave] gives. remembered
// is false if the store doesn't know the message, or knows it by another version than
// [OfVersion] says. Repeating it is safe. An extension of Holdfast
// (protocol, section 8).
func (c *Client) Done(ctx context.Context, key, messageID string, opts ...DoneOption) (remembered bool, err error) {
	var a doneArgs
	for _, o := range opts {
		o.applyDone(&a)
	}
	r := newRequest("done", key, a.command(key, messageID)...)
	r.asWrite(c.cfg, &a.writeArgs)
	answer, err := c.do(ctx, r)
	if err != nil {
		return false, err
	}
	if answer.Kind != protocol.Int || answer.Int < 0 || answer.Int > 1 {
		return false, r.unexpected(&answer)
	}
	return answer.Int == 1, nil
}

type doneArgs struct {
	writeArgs
	version hlc.Timestamp // zero: none was given
	left    []byte
}

type doneFunc func(*doneArgs)

func (f doneFunc) applyDone(a *doneArgs) { f(a) }

// OfVersion has a [Client.Done] confirm the message only if it has produced this version,
// which is StoreResult.Version: a late Done then cannot confirm a message that was
// forgotten, and stored again under the same ID.
func OfVersion(version hlc.Timestamp) DoneOption {
	return doneFunc(func(a *doneArgs) { a.version = version })
}

// Leave has a [Client.Done] remember value with the message, in the place of what was
// captured, for [Client.Load] to give back.
func Leave(value []byte) DoneOption {
	return doneFunc(func(a *doneArgs) { a.left = append([]byte{}, value...) })
}

func (a *doneArgs) command(key, messageID string) [][]byte {
	args := [][]byte{[]byte("DONE"), []byte(key), []byte(messageID)}
	if !a.version.IsZero() {
		args = append(args, []byte("VER"), []byte(a.version.String()))
	}
	if a.left != nil {
		args = append(args, []byte("CTX"), a.left)
	}
	return args
}

// StateExpiry has the key of a [Client.Store] expire after d, which must be positive and
// is rounded up to whole milliseconds. Without it the key loses any expiry that it had.
func StateExpiry(d time.Duration) StoreOption {
	return storeFunc(func(a *storeArgs) { a.expiry, a.expires = d, true })
}

// DeleteState has a [Client.Store] delete its key instead of setting it; the state that is
// given does not count. The message is remembered all the same. It excludes [StateExpiry].
func DeleteState() StoreOption {
	return storeFunc(func(a *storeArgs) { a.deletes = true })
}
