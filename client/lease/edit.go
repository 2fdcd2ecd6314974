package lease

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/client"
)

// EditFunc makes a new value of an old one. found is false if there is no such
// key. If keep is false the key is deleted. After an error nothing is written.
// It may be called more than once, with other values, and should return soon
// after its context has ended.
type EditFunc func(ctx context.Context, old []byte, found bool) (updated []byte, keep bool, err error)

// Edit reads a key, changes it and writes it back under the lock, which need
// not be the same key.
//
// It is safe against a former holder that still runs. A token on the write alone would
// not be enough: the server accepts the former holder's write, with its lower token, until
// Edit has written, and if that write comes after Edit has read, Edit overwrites it. So
// Edit first seals the key: it writes the value back with its own token, conditional on
// the version. From then on the server refuses every lower token, and edit gets all that
// was written before. A key that doesn't exist can't be sealed: the write is conditional
// on the key's absence, and if that fails, Edit starts over.
//
// The key loses its expiry, if it had one. Deleting it (keep false) removes the
// seal with it: a former holder can then bring the key back. Where that matters,
// write an empty value instead.
//
// An error that is [ErrLost] or [client.ErrTokenTooLow] means that the lock was
// lost before the write; nothing was changed then, unless it is
// [client.ErrUnknownOutcome] as well.
func (k *Lock) Edit(ctx context.Context, key string, edit EditFunc) error {
	l, err := k.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.releaseQuietly(ctx)
	bound, cancel := l.Bind(ctx)
	defer cancel()
	err = l.edit(bound, key, edit)
	if lost := l.Err(); err != nil && errors.Is(lost, ErrLost) {
		return fmt.Errorf("edit %q: %w: %w", key, lost, err)
	}
	return err
}

// releaseQuietly releases a lease whose work is done: what cannot be released
// expires.
func (l *Lease) releaseQuietly(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	_ = l.Release(ctx)
}

func (l *Lease) edit(ctx context.Context, key string, edit EditFunc) error {
	for done := false; !done; {
		old, found, err := l.seal(ctx, key)
		if err != nil {
			return err
		}
		base := old.Version // edit may change old.Bytes
		updated, keep, err := edit(ctx, old.Bytes, found)
		switch {
		case err != nil:
			return err
		case !keep && !found:
			return nil
		case !keep:
			return l.remove(ctx, key)
		}
		if done, err = l.replace(ctx, key, client.Value{Bytes: updated, Version: base}); err != nil {
			return err
		}
	}
	return nil
}

// seal reads a key and makes sure that no client with a lower token can change it
// any more, unless there is no such key.
func (l *Lease) seal(ctx context.Context, key string) (v client.Value, found bool, err error) {
	for {
		v, found, err = l.client.Get(ctx, key)
		if err != nil || !found {
			return v, false, err
		}
		set, err := l.client.Set(ctx, key, v.Bytes, client.IfVersion(v.Version), l.Fencing())
		switch {
		case err == nil:
			v.Version = set.Version
			return v, true, nil
		case errors.Is(err, client.ErrNotApplied):
			// Another client has changed the key meanwhile: read it again.
		case errors.Is(err, client.ErrUnknownOutcome) && !ended(ctx, err):
			// It may be sealed or not: read it again.
		default:
			return v, false, err
		}
	}
}

// remove deletes a sealed key. Only a later holder can have changed it meanwhile, and then
// this lease's token is too low. So the request may be repeated.
func (l *Lease) remove(ctx context.Context, key string) error {
	for sent := false; ; sent = true {
		_, err := l.client.Del(ctx, key, l.Fencing())
		switch {
		case errors.Is(err, client.ErrUnknownOutcome) && !ended(ctx, err):
		case err != nil && sent:
			return fmt.Errorf("%w: %w", client.ErrUnknownOutcome, err)
		default:
			return err
		}
	}
}

// replace writes a key that still has the version in v: zero if it must not
// exist. done is false if it was changed meanwhile.
func (l *Lease) replace(ctx context.Context, key string, v client.Value) (done bool, err error) {
	for {
		_, err := l.client.Set(ctx, key, v.Bytes, client.IfVersion(v.Version), l.Fencing())
		if err == nil || errors.Is(err, client.ErrNotApplied) {
			return err == nil, nil
		}
		if ended(ctx, err) || !errors.Is(err, client.ErrUnknownOutcome) {
			return false, err
		}
		now, _, readErr := l.client.Get(ctx, key)
		switch {
		case readErr != nil:
			return false, fmt.Errorf("%w; then, %w", err, readErr)
		case now.Version == v.Version:
			// Not carried out so far. If it still is, the repetition isn't.
		case !v.Version.IsZero() && l.Err() == nil:
			return true, nil // sealed and held: no other client can have written
		default:
			return false, err
		}
	}
}
