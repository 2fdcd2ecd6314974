package abuse

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// Attacks on what there is only so much of: sessions, queues, descriptors,
// handshakes, lines of the log, locks.

var roomAttacks = []*Attack{
	{
		Name:        "persistent sessions",
		Keeps:       true,
		FromOutside: true,
		What:        "200,000 sessions that outlive their connections",
		SmallFlags:  []string{"--max-sessions", "500"},
		Ceiling:     [2]int64{300, 1536},
		Launch: func(t *Target) error {
			n := pick(t, 600, 200_100)
			t.each(n, 256, func(i int) error {
				nc, err := dialFrom(attacker, t.attacked, attackLimit)
				if err != nil {
					return err
				}
				k := newLink(nc)
				defer k.close()
				return k.connect(fmt.Sprintf("squatter-%d", i), math.MaxUint32, attackLimit)
			})
			return nil
		},
	},
	{
		Name:       "total bound of the queues",
		Keeps:      true,
		What:       "200 sessions of one attacker fill the queues' total bound, of 4 GiB here; another session waits with 500 messages of 100 KB",
		SmallFlags: []string{"--max-total-queued-bytes", "20MiB"},
		FullFlags:  []string{"--max-total-queued-bytes", "4GiB"},
		Ceiling:    [2]int64{400, 2048},
		Prepare: func(t *Target) error {
			k, err := enter(t.Addr, "prepare", attackLimit)
			if err != nil {
				return err
			}
			defer k.close()
			nc, err := dialFrom(loopback, t.Addr, attackLimit)
			if err != nil {
				return err
			}
			victim := newLink(nc)
			defer victim.close()
			if err := victim.connect("victim", 3600, attackLimit); err != nil {
				return err
			}
			if err := victim.subscribe(1, attackLimit, "victim"); err != nil {
				return err
			}
			victim.close()
			payload := make([]byte, pick(t, 1_000, 100_000))
			_, err = k.pipeline(victimMessages, 20, mqtt.PUBACK, attackLimit, func(int) []byte { return k.publish(1, false, "victim", payload) })
			return err
		},
		Launch: func(t *Target) error {
			const sessions = 200
			t.each(sessions, 20, func(i int) error {
				k, err := t.enter(fmt.Sprintf("hoard-%d", i), 3600)
				if err != nil {
					return err
				}
				defer k.close()
				return k.subscribe(1, attackLimit, "hoard/#")
			})
			k, err := t.enter("hoarder", 0)
			if err != nil {
				return turnedAway(err)
			}
			payload := make([]byte, pick(t, 1_000, 100_000))
			_, err = k.pipeline(pick(t, 130, 260), 10, mqtt.PUBACK, attackLimit, func(int) []byte { return k.publish(1, false, "hoard/all", payload) })
			return turnedAway(err)
		},
		Check: func(t *Target) error {
			nc, err := dialFrom(loopback, t.Addr, attackLimit)
			if err != nil {
				return err
			}
			victim := newLink(nc)
			defer victim.close()
			if err := victim.connect("victim", 3600, attackLimit); err != nil {
				return fmt.Errorf("the waiting session: %w", err)
			}
			for n := range victimMessages {
				p, err := victim.await(mqtt.PUBLISH, time.Now().Add(attackLimit))
				if err != nil {
					return fmt.Errorf("the waiting session got %d of its %d acknowledged messages: %w", n, victimMessages, err)
				}
				var m mqtt.Publish
				if err := m.DecodeDelivery(mqtt.V5, p.header, p.body); err != nil {
					return err
				}
				if err := victim.write(mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBACK, m.PacketID, mqtt.Success, ""), attackLimit); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		Name:       "watches until memory ends",
		What:       "1,000 connections watch 10,000 keys each",
		SmallFlags: smallPool,
		FullFlags:  []string{"--max-memory", "2GiB"},
		Ceiling:    [2]int64{200, 2048},
		Launch: func(t *Target) error {
			t.each(pick(t, 30, 1_000), 10, func(i int) error {
				k, err := t.enter(fmt.Sprintf("watcher-%d", i), 0)
				if err != nil {
					return err
				}
				if err := k.takeReplies(attackLimit); err != nil {
					return err
				}
				go k.drain()
				for n := 0; n < 10_000 && err == nil; {
					var some []byte
					for end := n + 100; n < end; n++ {
						watch, _ := k.command(nil, []byte("KEYNOTIFY"), fmt.Appendf(nil, "w/%d/%d", i, n))
						some = append(some, watch...)
					}
					err = k.write(some, attackLimit)
				}
				return err
			})
			return nil
		},
	},
	{
		Name:        "idle connections",
		Keeps:       true, // the keys that make the log grow
		FromOutside: true,
		What:        "idle connections up to the limit of open files (4,096), while the log grows",
		Descriptors: [2]int{512, 4096},
		Ceiling:     [2]int64{300, 512},
		Launch: func(t *Target) error {
			writer, err := enter(t.Addr, "writer", attackLimit)
			if err != nil {
				return err
			}
			defer writer.close()
			n := pick(t, 600, 4_300)
			t.each(n, 50, func(i int) error {
				_, err := t.enter(fmt.Sprintf("idle-%d", i), 0)
				return err
			})
			value := strings.Repeat("x", 1_000_000)
			for i := range 40 { // the log has segments of 8 MiB
				r, err := writer.ask(attackLimit, "SET", fmt.Sprintf("grow/%d", i%4), value)
				if err != nil {
					return fmt.Errorf("a client that was connected before: %w", err)
				}
				if r.Kind != protocol.Simple {
					return fmt.Errorf("a client that was connected before: SET: %q", r.Text)
				}
			}
			return nil
		},
	},
	{
		Name:    "unfinished handshakes",
		What:    "1,500 WebSocket handshakes that don't end",
		OverWS:  true,
		Ceiling: [2]int64{300, 512},
		Launch: func(t *Target) error {
			t.each(1_500, 50, func(int) error {
				k, err := t.dial(t.attackedWS)
				if err != nil {
					return err
				}
				return k.write([]byte("GET /mqtt HTTP/1.1\r\nHost: localhost\r\n"), attackLimit)
			})
			t.hold(pick(t, 300*time.Millisecond, 2*time.Second))
			return nil
		},
	},
	{
		Name:    "failing connections",
		What:    "connections that fail, as fast as they come, for 5 s",
		Ceiling: [2]int64{300, 512},
		Launch: func(t *Target) error {
			t.flood(16, pick(t, time.Second, 5*time.Second), func(int) (func() error, error) {
				return func() error {
					nc, err := dialFrom(attacker, t.attacked, attackLimit)
					if err != nil {
						return err
					}
					k := newLink(nc)
					defer k.close()
					// A version of MQTT that does not exist.
					_ = k.write([]byte("\x10\x0d\x00\x04MQTT\x09\x02\x00\x3c\x00\x01x"), attackLimit)
					_, _ = k.read(time.Now().Add(attackLimit))
					return nil
				}, nil
			})
			return nil
		},
	},
	{
		Name:    "fencing token with a node ID of 17,000 bytes",
		Keeps:   true, // what was stored
		What:    "SET and STORE of 128 keys with such a token",
		Ceiling: [2]int64{300, 512},
		Launch: func(t *Target) error {
			token := fmt.Sprintf("%d:0:%s", time.Now().UnixMilli(), strings.Repeat("n", 17_000))
			user := mqtt.AppendUserProp(nil, protocol.TokenProperty, token)
			t.each(fencedKeys, 16, func(i int) error {
				k, err := t.enter(fmt.Sprintf("fence-%d", i), 0)
				if err != nil {
					return err
				}
				if err := k.takeReplies(attackLimit); err != nil {
					return err
				}
				args := []string{"SET", fmt.Sprintf("fenced/%d", i), "value"}
				if i%2 == 1 {
					args = []string{"STORE", fmt.Sprintf("fenced/%d", i), "value", "message", "-"}
				}
				_, err = k.askWith(user, pick(t, 500*time.Millisecond, 2*time.Second), args...)
				return err
			})
			return nil
		},
		Check: func(t *Target) error {
			k, err := enter(t.Addr, "reader", attackLimit)
			if err != nil {
				return err
			}
			defer k.close()
			for i := range fencedKeys {
				if _, err := k.ask(attackLimit, "GET", fmt.Sprintf("fenced/%d", i)); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		Name:    "fields at their bounds and above",
		Keeps:   true,
		What:    "a key, a pattern, a message ID and a node ID, each at its bound and a byte above",
		Ceiling: [2]int64{300, 512},
		Launch:  fieldsAtTheirBounds,
	},
}

const (
	victimMessages = 500
	fencedKeys     = 128
)

// fieldsAtTheirBounds asks for what is allowed, which must be done, and for a byte
// more, which must be refused with an error: never with silence, nor with the end
// of the connection.
func fieldsAtTheirBounds(t *Target) error {
	k, err := enter(t.Addr, "bounds", attackLimit)
	if err != nil {
		return err
	}
	defer k.close()
	token := func(node int) []byte {
		return mqtt.AppendUserProp(nil, protocol.TokenProperty, fmt.Sprintf("%d:0:%s", time.Now().UnixMilli(), strings.Repeat("n", node)))
	}
	var broken []error
	for _, field := range []struct {
		name  string
		bound int
		user  func(n int) []byte
		args  func(n int) []string
	}{
		{name: "key", bound: 64 << 10, args: func(n int) []string { return []string{"SET", strings.Repeat("k", n), "value"} }},
		{name: "pattern", bound: 1 << 10, args: func(n int) []string { return []string{"SCAN", strings.Repeat("p", n)} }},
		{name: "message ID", bound: 1 << 10, args: func(n int) []string { return []string{"DONE", "bounds/done", strings.Repeat("m", n)} }},
		{name: "node ID", bound: 256, user: token, args: func(n int) []string { return []string{"SET", fmt.Sprintf("bounds/node/%d", n), "value"} }},
	} {
		for _, over := range []int{0, 1} {
			var user []byte
			if field.user != nil {
				user = field.user(field.bound + over)
			}
			r, err := k.askWith(user, attackLimit, field.args(field.bound+over)...)
			switch {
			case err != nil:
				return errors.Join(append(broken, fmt.Errorf("a %s of %d bytes: %w", field.name, field.bound+over, err))...)
			case over == 0 && r.Kind == protocol.Error:
				broken = append(broken, fmt.Errorf("a %s of %d bytes was refused: %s", field.name, field.bound, r.Text))
			case over == 1 && r.Kind != protocol.Error:
				broken = append(broken, fmt.Errorf("a %s of %d bytes was not refused", field.name, field.bound+over))
			}
		}
	}
	return errors.Join(broken...)
}
