package abuse

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Attacks on the processors: packets that take long to work through.

// flood lets so many attackers act for a while, each as fast as it can: begin
// gives what one of them does again and again. Acts still under way at the end,
// because the server doesn't take what is sent, end when the attackers leave.
func (t *Target) flood(attackers int, d time.Duration, begin func(i int) (act func() error, err error)) {
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for i := range attackers {
		wg.Go(func() {
			act, err := begin(i)
			for err == nil && time.Now().Before(end) && t.ctx.Err() == nil {
				err = act()
			}
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(d + d/4):
	}
}

// floodFor is how long the floods of packets go on.
func floodFor(t *Target) time.Duration { return pick(t, time.Second, 5*time.Second) }

// sends begins an attacker that sends the same packets again and again, and throws
// away what comes back. When the server ends its connection it makes another.
func (t *Target) sends(id string, packets []byte) (act func() error, err error) {
	k, err := t.enter(id, 0)
	if err != nil {
		return nil, err
	}
	go k.drain()
	return func() error {
		if k.write(packets, attackLimit) == nil {
			return nil
		}
		if k, err = t.enter(id, 0); err != nil {
			return err
		}
		go k.drain()
		return nil
	}, nil
}

// scanPolicy lets every client do everything but read keys: those of the bystander alone.
const scanPolicy = `rules:
- brokerResources:
  - {method: Connect}
  - {method: Publish, topics: ["#"]}
  - {method: Subscribe, topics: ["#", "$SYS/#"]}
  stateStoreResources:
  - {method: ReadWrite, keyType: Pattern, keys: ["bystander/*"]}
- principals:
    clientIds: [prepare-0, prepare-1, prepare-2, prepare-3]
  stateStoreResources:
  - {method: Write, keyType: Pattern, keys: ["hidden/*"]}
`

var timeAttacks = []*Attack{
	{
		Name:    "pattern that takes long",
		What:    "16 SCANs with * and 500,000 times [ab], over a key of 2 MB",
		Ceiling: [2]int64{300, 512},
		Prepare: func(t *Target) error {
			n := pick(t, 20_000, 500_000)
			k, err := enter(t.Addr, "prepare", attackLimit)
			if err != nil {
				return err
			}
			defer k.close()
			_, err = k.ask(attackLimit, "SET", strings.Repeat("a", 4*n), "value") // if the server takes such a key
			if err != nil {
				return err
			}
			_, err = k.ask(attackLimit, "SET", strings.Repeat("a", 64<<10), "value") // and one that it does take
			return err
		},
		Launch: func(t *Target) error {
			n := pick(t, 20_000, 500_000)
			patterns := []string{
				"*" + strings.Repeat("[ab]", n) + "c*",
				"*" + strings.Repeat("[ab]", 254) + "c*", // short enough to be taken
			}
			t.each(16, 16, func(i int) error {
				k, err := t.enter(fmt.Sprintf("scanner-%d", i), 0)
				if err != nil {
					return err
				}
				if err := k.takeReplies(attackLimit); err != nil {
					return err
				}
				for _, pattern := range patterns {
					publish, _ := k.command(nil, []byte("SCAN"), []byte(pattern))
					if err := k.write(publish, attackLimit); err != nil {
						return err
					}
				}
				return nil
			})
			t.hold(pick(t, time.Second, 5*time.Second))
			return nil
		},
	},
	{
		Name:    "SCANs without a pause",
		What:    "16 clients SCAN for * and 254 times [ab] over 1,000 keys of 32 KB, as fast as they can",
		Ceiling: [2]int64{300, 512},
		Prepare: func(t *Target) error {
			k, err := enter(t.Addr, "prepare", attackLimit)
			if err != nil {
				return err
			}
			defer k.close()
			for i := range pick(t, 100, 1_000) {
				if _, err := k.ask(attackLimit, "SET", fmt.Sprint(strings.Repeat("ab", 16<<10), i), "value"); err != nil {
					return err
				}
			}
			return nil
		},
		Launch: func(t *Target) error {
			t.flood(16, floodFor(t), func(i int) (func() error, error) {
				k, err := t.enter(fmt.Sprintf("scans-%d", i), 0)
				if err != nil {
					return nil, err
				}
				go k.drain()
				publish, _ := k.command(nil, []byte("SCAN"), []byte("*"+strings.Repeat("[ab]", 254)+"c*"))
				return func() error { return k.write(publish, attackLimit) }, nil
			})
			return nil
		},
	},
	{
		Name:       "SCANs of keys that may not be read",
		What:       "8 clients that may read 256 keys SCAN a million keys, as fast as they can",
		Keeps:      true, // the keys
		Policy:     scanPolicy,
		SmallFlags: []string{"--max-keys", "100000"},
		FullFlags:  []string{"--max-keys", "1100000"},
		Ceiling:    [2]int64{300, 1024},
		Prepare: func(t *Target) error {
			const writers = 4
			n := pick(t, 50_000, 1_000_000) / writers
			errs := make([]error, writers)
			t.each(writers, writers, func(w int) error {
				k, err := enter(t.Addr, fmt.Sprintf("prepare-%d", w), attackLimit)
				if err == nil {
					defer k.close()
					_, err = k.pipeline(n, 500, mqtt.PUBACK, attackLimit, func(i int) []byte {
						publish, _ := k.command(nil, []byte("SET"), fmt.Appendf(nil, "hidden/%d/%d", w, i), []byte("value"))
						return publish
					})
				}
				errs[w] = err
				return err
			})
			return errors.Join(errs...)
		},
		Launch: func(t *Target) error {
			t.flood(8, floodFor(t), func(i int) (func() error, error) {
				k, err := t.enter(fmt.Sprintf("scans-%d", i), 0)
				if err != nil {
					return nil, err
				}
				if err := k.takeReplies(attackLimit); err != nil {
					return nil, err
				}
				go k.drain()
				publish, _ := k.command(nil, []byte("SCAN"), []byte("*"))
				return func() error { return k.write(publish, attackLimit) }, nil
			})
			return nil
		},
	},
	{
		Name:    "overlapping filters",
		What:    "8,192 filters of one client that match the same topic, and a flood of messages to it",
		Ceiling: [2]int64{400, 1024},
		Launch: func(t *Target) error {
			const levels = 13 // 2 to the power of 13 filters
			filters := []string{""}
			for range levels {
				var next []string
				for _, f := range filters {
					next = append(next, f+"a/", f+"+/")
				}
				filters = next
			}
			for i := range filters {
				filters[i] = strings.TrimSuffix(filters[i], "/")
			}
			k, err := t.enter("overlap", 0)
			if err != nil {
				return err
			}
			for i := 0; i < len(filters); i += 1024 {
				if err := k.subscribe(0, attackLimit, filters[i:i+1024]...); err != nil {
					return turnedAway(err)
				}
			}
			go k.drain()
			one := k.publish(0, false, strings.TrimSuffix(strings.Repeat("a/", levels), "/"), []byte("x"))
			t.flood(4, floodFor(t), func(i int) (func() error, error) {
				return t.sends(fmt.Sprintf("overlap-%d", i), bytes.Repeat(one, 100))
			})
			return nil
		},
	},
	{
		Name:    "empty user properties",
		What:    "PUBLISHes with 838,840 empty user properties, of 4 clients",
		Ceiling: [2]int64{400, 1024},
		Launch: func(t *Target) error {
			p := mqtt.Publish{Topic: []byte("properties"), Props: mqtt.PublishProps{Raw: bytes.Repeat([]byte{0x26, 0, 0, 0, 0}, 838_840)}}
			packet := mqtt.AppendPublish(nil, mqtt.V5, &p)
			t.flood(4, floodFor(t), func(i int) (func() error, error) { return t.sends(fmt.Sprintf("properties-%d", i), packet) })
			return nil
		},
	},
	{
		Name:    "SUBSCRIBE of many filters",
		What:    "SUBSCRIBEs of 478,374 filters, of 4 clients",
		Ceiling: [2]int64{400, 1024},
		Launch: func(t *Target) error {
			s := mqtt.Subscribe{PacketID: 1}
			for i := range 478_374 {
				s.Subscriptions = append(s.Subscriptions, mqtt.Subscription{Filter: strconv.AppendInt(nil, int64(i), 36)})
			}
			packet := mqtt.AppendSubscribe(nil, mqtt.V5, &s)
			t.flood(4, floodFor(t), func(i int) (func() error, error) { return t.sends(fmt.Sprintf("subscribe-%d", i), packet) })
			return nil
		},
	},
	{
		Name:    "WebSocket pings",
		What:    "50 floods of WebSocket pings",
		OverWS:  true,
		Ceiling: [2]int64{300, 512},
		Launch: func(t *Target) error {
			pings := bytes.Repeat(frame(opPing, nil), 1_000)
			t.flood(50, floodFor(t), func(i int) (func() error, error) {
				k, err := t.upgrade()
				if err != nil {
					return nil, err
				}
				hello := mqtt.Connect{Version: mqtt.V5, CleanStart: true, ClientID: fmt.Appendf(nil, "ping-%d", i), ReceiveMaximum: 65535, RequestProblemInfo: true}
				if err := k.write(frame(opBinary, mqtt.AppendConnect(nil, &hello)), attackLimit); err != nil {
					return nil, err
				}
				go k.drain()
				return func() error { return k.write(pings, attackLimit) }, nil
			})
			return nil
		},
	},
	{
		Name:    "everything retained",
		What:    "50 clients subscribe to # over a million retained messages, again and again",
		Ceiling: [2]int64{400, 2048},
		Prepare: func(t *Target) error {
			n := pick(t, 5_000, 1_000_000)
			const publishers = 8
			return publishRetained(t, n/publishers, publishers)
		},
		Launch: func(t *Target) error {
			t.flood(50, floodFor(t), func(i int) (func() error, error) {
				k, err := t.enter(fmt.Sprintf("all-%d", i), 0)
				if err != nil {
					return nil, err
				}
				go k.drain()
				all := k.subscription(0, "#")
				return func() error {
					t.hold(100 * time.Millisecond)
					return k.write(all, attackLimit)
				}, nil
			})
			return nil
		},
	},
}

// publishRetained leaves n retained messages of each publisher.
func publishRetained(t *Target, n, publishers int) error {
	errs := make([]error, publishers)
	var wg sync.WaitGroup
	for i := range publishers {
		wg.Go(func() {
			k, err := enter(t.Addr, fmt.Sprintf("prepare-%d", i), attackLimit)
			if err == nil {
				defer k.close()
				_, err = k.pipeline(n, 500, mqtt.PUBACK, attackLimit, func(j int) []byte {
					return k.publish(1, true, fmt.Sprintf("retained/%d/%d", i, j), []byte("value"))
				})
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Attacks are all that are known, in the order of the table.
func Attacks() []*Attack {
	var all []*Attack
	for _, group := range [][]*Attack{memoryAttacks, roomAttacks, handshakeAttacks, timeAttacks, slowAttacks} {
		for _, a := range group {
			own := *a // each caller may change it
			if own.Longest == ([2]seconds{}) {
				own.Longest = [2]seconds{20, 5}
			}
			all = append(all, &own)
		}
	}
	return all
}
