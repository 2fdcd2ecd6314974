package abuse

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Attacks on the memory: what the server keeps for clients.

// smallPool is the memory that clients get at small size.
var smallPool = []string{"--max-memory", "160MiB"}

var memoryAttacks = []*Attack{
	{
		Name:       "unread answers",
		What:       "300 clients pipeline 200 GETs each of one value of 4 MB and never read",
		SmallFlags: smallPool,
		Ceiling:    [2]int64{400, 2048},
		Prepare:    func(t *Target) error { return storeValue(t, "large", 4_000_000) },
		Launch: func(t *Target) error {
			n, gets := pick(t, 80, 300), pick(t, 50, 200)
			t.each(n, n, func(i int) error {
				k, err := t.enterDeaf(fmt.Sprintf("unread-%d", i))
				if err != nil {
					return err
				}
				if err := k.takeReplies(attackLimit); err != nil {
					return err
				}
				var all []byte
				for range gets {
					publish, _ := k.command(nil, []byte("GET"), []byte("large"))
					all = append(all, publish...)
				}
				return k.write(all, attackLimit)
			})
			t.hold(pick(t, 500*time.Millisecond, 5*time.Second))
			return nil
		},
	},
	{
		Name:       "large filters",
		What:       "one connection subscribes to 10,000 filters of 60 KB",
		SmallFlags: smallPool,
		Ceiling:    [2]int64{300, 1024},
		Launch: func(t *Target) error {
			k, err := t.enter("filters", 0)
			if err != nil {
				return err
			}
			const inOne = 60
			_, err = k.pipeline(pick(t, 5_000, 10_000)/inOne, 4, mqtt.SUBACK, attackLimit, func(i int) []byte {
				filters := make([]string, inOne)
				for j := range filters {
					filters[j] = padded(fmt.Sprintf("filter/%d/", i*inOne+j), 60_000)
				}
				return k.subscription(0, filters...)
			})
			return turnedAway(err)
		},
	},
	{
		Name:       "watches of large keys",
		What:       "4 connections watch 10,000 keys of 32 KB each",
		SmallFlags: smallPool,
		Ceiling:    [2]int64{300, 1024},
		Launch: func(t *Target) error {
			n := pick(t, 2_500, 10_000)
			t.each(4, 4, func(i int) error {
				k, err := t.enter(fmt.Sprintf("watcher-%d", i), 0)
				if err != nil {
					return err
				}
				if err := k.takeReplies(attackLimit); err != nil {
					return err
				}
				_, err = k.pipeline(n, 100, mqtt.PUBACK, attackLimit, func(j int) []byte {
					publish, _ := k.command(nil, []byte("KEYNOTIFY"), []byte(padded(fmt.Sprintf("watched/%d/%d/", i, j), 32_000)))
					return publish
				})
				return err
			})
			return nil
		},
	},
	{
		Name:       "large topic aliases",
		What:       "1,000 connections with 32 topic aliases of 60 KB",
		SmallFlags: smallPool,
		Ceiling:    [2]int64{300, 1024},
		Launch: func(t *Target) error {
			n := pick(t, 250, 1_000)
			t.each(n, 50, func(i int) error {
				k, err := t.enter(fmt.Sprintf("alias-%d", i), 0)
				if err != nil {
					return err
				}
				for a := range 32 {
					p := mqtt.Publish{Topic: []byte(padded(fmt.Sprintf("alias/%d/%d/", i, a), 60_000))}
					p.Props.HasTopicAlias, p.Props.TopicAlias = true, uint16(a+1)
					if err := k.write(mqtt.AppendPublish(nil, mqtt.V5, &p), attackLimit); err != nil {
						return err
					}
				}
				return nil
			})
			t.hold(pick(t, 300*time.Millisecond, 2*time.Second))
			return nil
		},
	},
	{
		Name:       "unfinished PUBLISH",
		What:       "400 connections send a PUBLISH of 4 MB but for its last byte",
		SmallFlags: smallPool,
		Ceiling:    [2]int64{300, 1536}, // the pool lets traffic take 645 MiB of 2 GiB, and Go collects when the heap has doubled
		Launch: func(t *Target) error {
			n := pick(t, 100, 400)
			whole := newLink(nil).publish(0, false, "unfinished", make([]byte, 4_000_000))
			t.each(n, 20, func(i int) error {
				k, err := t.enter(fmt.Sprintf("unfinished-%d", i), 0)
				if err != nil {
					return err
				}
				return k.write(whole[:len(whole)-1], pick(t, 500*time.Millisecond, 5*time.Second))
			})
			t.hold(pick(t, 300*time.Millisecond, 5*time.Second))
			return nil
		},
	},
	{
		Name:       "unfinished CONNECT",
		What:       "4,000 connections send a CONNECT of 250 KB but for its last byte",
		SmallFlags: smallPool,
		Ceiling:    [2]int64{300, 1024},
		Launch: func(t *Target) error {
			n := pick(t, 1_600, 4_000)
			hello := mqtt.Connect{
				Version: mqtt.V5, CleanStart: true, ReceiveMaximum: 65535, RequestProblemInfo: true,
				ClientID: []byte("unfinished"), HasPassword: true, Password: make([]byte, 60_000),
			}
			for range 4 { // user properties, of which a CONNECT may have any number
				hello.Raw = mqtt.AppendUserProp(hello.Raw, "padding", strings.Repeat("x", 47_000))
			}
			whole := mqtt.AppendConnect(nil, &hello)
			t.each(n, 50, func(int) error {
				k, err := t.dial(t.attacked)
				if err != nil {
					return err
				}
				return k.write(whole[:len(whole)-1], pick(t, 500*time.Millisecond, 5*time.Second))
			})
			t.hold(pick(t, 300*time.Millisecond, 3*time.Second))
			return nil
		},
	},
	{
		Name:       "queues of absent sessions",
		Keeps:      true,
		What:       "8 sessions that are away, 1,000 messages of 256 KB for each",
		SmallFlags: smallPool,
		Ceiling:    [2]int64{300, 2048},
		Launch: func(t *Target) error {
			const sessions = 8
			for i := range sessions {
				k, err := t.enter(fmt.Sprintf("away-%d", i), 3600)
				if err != nil {
					return turnedAway(err)
				}
				if err := k.subscribe(1, attackLimit, fmt.Sprintf("away/%d", i)); err != nil {
					return turnedAway(err)
				}
				k.close()
			}
			payload := make([]byte, 256_000)
			n := pick(t, 150, 1_000)
			t.each(sessions, sessions, func(i int) error {
				k, err := t.enter(fmt.Sprintf("filler-%d", i), 0)
				if err != nil {
					return err
				}
				_, err = k.pipeline(n, 10, mqtt.PUBACK, attackLimit, func(int) []byte {
					return k.publish(1, false, fmt.Sprintf("away/%d", i), payload)
				})
				return err
			})
			return nil
		},
	},
	{
		Name:       "subscribers that don't read",
		What:       "1,000 subscribers that don't read get messages of 4 MiB",
		SmallFlags: smallPool,
		Ceiling:    [2]int64{350, 2048},
		Launch: func(t *Target) error {
			n := pick(t, 100, 1_000)
			t.each(n, 50, func(i int) error {
				k, err := t.enterDeaf(fmt.Sprintf("deaf-%d", i))
				if err != nil {
					return err
				}
				return k.subscribe(byte(i%2), attackLimit, "deaf/#")
			})
			k, err := t.enter("loud", 0)
			if err != nil {
				return turnedAway(err)
			}
			message := k.publish(0, false, "deaf/all", make([]byte, 4<<20-100))
			for range 5 {
				if err := k.write(message, attackLimit); err != nil {
					return turnedAway(err)
				}
			}
			t.hold(pick(t, 500*time.Millisecond, 5*time.Second))
			return nil
		},
	},
}

// storeValue sets a key to a value of a size in bytes.
func storeValue(t *Target, key string, size int) error {
	k, err := enter(t.Addr, "prepare", attackLimit)
	if err != nil {
		return err
	}
	defer k.close()
	_, err = k.ask(attackLimit, "SET", key, string(bytes.Repeat([]byte("x"), size)))
	return err
}

// padded is name, with as many bytes behind it as it takes to have so many.
func padded(name string, size int) string {
	return name + strings.Repeat("x", max(0, size-len(name)))
}

// turnedAway passes over that the server refuses an attacker, or hangs up on it:
// it may.
func turnedAway(error) error { return nil }
