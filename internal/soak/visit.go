package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/lease"
)

// visit is one connection of a client, from CONNECT to its end.
type visit struct {
	*run
	random *rand.Rand
	client int    // its number
	number int    // of this connection of the client's
	id     string // the client ID
	ctx    context.Context
}

// variety is how many kinds there are.
const variety = 10

// kinds are what clients do, in turn.
var kinds = [variety]func(*visit) error{
	keyUser, subscriber, guest, keyUser, oldGuest, processor, member, guest, watcher, silent,
}

// url is where this visit connects: every transport in turn.
func (v *visit) url() string { return v.server.urls[(v.client+v.number)%len(v.server.urls)] }

// operate does something at every Pause, until the visit is over.
func (v *visit) operate(do func() error) error {
	for v.ctx.Err() == nil {
		if err := do(); err != nil {
			return err
		}
		v.done.Add(1)
		sleep(v.ctx, v.Pause/2+time.Duration(v.random.Int64N(int64(v.Pause))))
	}
	return nil
}

// store is a connection to the state store.
func (v *visit) store() (*client.Client, func(), error) {
	c, err := client.Dial(v.ctx, v.url(), v.server.options(v.id)...)
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to the store: %w", err)
	}
	v.inside.Add(1)
	return c, func() { v.inside.Add(-1); _ = c.Close() }, nil
}

// lasting is how long keys and retained messages last: what is written in a run comes to
// a constant amount.
const lasting = 2 * time.Minute

// keyUser sets, reads, deletes and lists keys that others use as well, and locks.
func keyUser(v *visit) error {
	c, leave, err := v.store()
	if err != nil {
		return err
	}
	defer leave()
	lock, err := lease.NewLock(c, fmt.Sprintf("soak/lock/%d", v.client%50), lease.WithTTL(10*time.Second))
	if err != nil {
		return err
	}
	value := make([]byte, 16<<v.random.IntN(10))
	return v.operate(func() error {
		key := fmt.Sprintf("soak/key/%d", v.random.IntN(20*v.Clients))
		switch v.random.IntN(8) {
		case 0, 1, 2:
			_, err := c.Set(v.ctx, key, value, client.Expiry(lasting))
			return err
		case 3:
			_, err := c.Set(v.ctx, key, value, client.IfAbsent(), client.Expiry(lasting))
			if errors.Is(err, client.ErrNotApplied) {
				err = nil
			}
			return err
		case 4:
			_, err := c.Del(v.ctx, key)
			return err
		case 5:
			n := 0
			for _, err := range c.Scan(v.ctx, fmt.Sprintf("soak/key/%d*", v.random.IntN(100))) {
				if n++; err != nil || n > 100 {
					return err
				}
			}
			return nil
		case 6:
			held, err := lock.TryLock(v.ctx)
			switch {
			case errors.Is(err, lease.ErrTaken):
				return nil
			case err != nil:
				return err
			}
			return held.Release(v.ctx)
		}
		_, _, err := c.Get(v.ctx, key)
		return err
	})
}

// processor processes messages by LOAD, STORE and DONE, some of them twice.
func processor(v *visit) error {
	c, leave, err := v.store()
	if err != nil {
		return err
	}
	defer leave()
	return v.operate(func() error {
		key := fmt.Sprintf("soak/state/%d", v.client)
		message := fmt.Sprintf("soak-%d-%d", v.client, v.random.IntN(1000))
		loaded, err := c.Load(v.ctx, key, message)
		if err != nil {
			return err
		}
		if loaded.Status == client.NewMessage {
			if _, err := c.Store(v.ctx, key, []byte(message), message, loaded.Version, client.Keep(lasting)); err != nil {
				return err
			}
		}
		_, err = c.Done(v.ctx, key, message)
		return err
	})
}

// watcher watches keys that others write.
func watcher(v *visit) error {
	c, leave, err := v.store()
	if err != nil {
		return err
	}
	defer leave()
	var watches []*client.Watch
	defer func() {
		for _, w := range watches {
			w.Close()
		}
	}()
	return v.operate(func() error {
		if len(watches) == 20 {
			watches[0].Close()
			watches = watches[1:]
		}
		w, err := c.Watch(v.ctx, fmt.Sprintf("soak/key/%d", v.random.IntN(20*v.Clients)))
		if err != nil {
			return err
		}
		watches = append(watches, w)
		return nil
	})
}

// subscriber has a session that outlives its connections: what others publish meanwhile
// waits for it.
func subscriber(v *visit) error {
	options := append(v.server.options(v.id), client.WithSessionExpiry(10*v.Life))
	s, err := client.DialSession(v.ctx, v.url(), options...)
	if err != nil {
		return fmt.Errorf("beginning a session: %w", err)
	}
	v.inside.Add(1)
	defer func() { v.inside.Add(-1); _ = s.Close() }()
	if err := s.Subscribe(v.ctx, fmt.Sprintf("soak/%d/+", v.client)); err != nil {
		return err
	}
	reader := make(chan struct{})
	go func() {
		defer close(reader)
		for d, err := range s.Messages(v.ctx) {
			if err != nil {
				return
			}
			d.Ack()
		}
	}()
	defer func() { <-reader }()
	return v.operate(func() error {
		return s.Publish(v.ctx, client.Message{Topic: v.topic(), Payload: make([]byte, 16<<v.random.IntN(9))})
	})
}

// topic is one that a subscriber subscribes to.
func (v *visit) topic() string {
	to := v.random.IntN(v.Clients/variety)*variety + 1
	return fmt.Sprintf("soak/%d/%d", to, v.random.IntN(10))
}
