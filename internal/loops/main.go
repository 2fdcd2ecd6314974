// Command loops is what bench/compare measures of package consistent: loops that process
// messages, each in a process of its own, and the load for them.
//
//	loops transactions ADDR    exactly once, by transactions
//	loops state ADDR           exactly once, by LOAD, STORE and DONE
//	loops at-least-once ADDR   a subscriber that publishes, waits for PUBACK, and acknowledges
//	loops load ADDR KEYS MESSAGES
//
// A loop collects garbage when its heap is five times what is in use, unless GOGC says otherwise. It
// prints "ready" when it gets messages, and works until SIGTERM. The load sends
// messages and awaits the output of each, and prints how many seconds that took.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	_ "net/http/pprof" // served if LOOPS_PPROF names an address
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
)

type deposit struct {
	Account string
	Amount  int
}

type account struct{ Balance, Deposits int }

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "loops:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(args) == 4 && args[0] == "load" {
		keys, err1 := strconv.Atoi(args[2])
		messages, err2 := strconv.Atoi(args[3])
		if err1 != nil || err2 != nil || keys < 1 || messages < 1 {
			return fmt.Errorf("%q and %q: give the number of keys and of messages", args[2], args[3])
		}
		return load(ctx, args[1], keys, messages)
	}
	if len(args) != 2 {
		return fmt.Errorf("%q: give a loop and an address", args)
	}
	if address := os.Getenv("LOOPS_PPROF"); address != "" {
		go func() { _ = http.ListenAndServe(address, nil) }()
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // of all loops: docs/performance.md
	}
	switch args[0] {
	case "transactions":
		return once(ctx, args[1])
	case "state":
		return once(ctx, args[1], consistent.Replay())
	case "at-least-once":
		return atLeastOnce(ctx, args[1])
	}
	return fmt.Errorf("there is no loop %q", args[0])
}

// once books deposits, each once.
func once(ctx context.Context, address string, opts ...consistent.Option) error {
	conn, err := consistent.Dial(ctx, address, client.WithClientID("loop"))
	if err != nil {
		return err
	}
	defer conn.Close()
	p, err := consistent.New(conn, "bank", append(opts, consistent.WithLogger(slog.New(slog.DiscardHandler)))...)
	if err != nil {
		return err
	}
	_ = consistent.Handle(p, "deposits/+", func(d deposit) string { return d.Account },
		func(_ *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
			s.Balance += d.Amount
			s.Deposits++
			return s, []consistent.Message{consistent.JSON("balances/"+d.Account, s)}, nil
		})
	go func() {
		<-p.Subscribed()
		fmt.Println("ready")
	}()
	return p.Run(ctx)
}

// waiting is how many messages of a key wait at most: as many as the server sends.
const waiting = 1024

// atLeastOnce answers deposits as fast as can be, those of a key one after the other.
func atLeastOnce(ctx context.Context, address string) error {
	session, err := client.DialSession(ctx, address, client.WithClientID("loop"))
	if err != nil {
		return err
	}
	defer session.Close()
	if err := session.Subscribe(ctx, "deposits/+"); err != nil {
		return err
	}
	fmt.Println("ready")
	lanes := make(map[string]chan client.Delivery)
	for d, err := range session.Messages(ctx) {
		if err != nil {
			return nil // it is to end
		}
		lane := lanes[d.Topic]
		if lane == nil {
			lane = make(chan client.Delivery, waiting)
			lanes[d.Topic] = lane
			go answer(ctx, session, lane)
		}
		lane <- d
	}
	return nil
}

func answer(ctx context.Context, session *client.Session, lane <-chan client.Delivery) {
	var s account
	for d := range lane {
		var m deposit
		if json.Unmarshal(d.Payload, &m) != nil {
			continue
		}
		s.Balance += m.Amount
		s.Deposits++
		if session.Publish(ctx, consistent.JSON("balances/"+m.Account, s)) == nil {
			d.Ack()
		}
	}
}

// window is how many messages of the load are under way.
const window = 1000

// senders publish the load, in batches, so many at a time over each of some sessions: as much as
// the window allows is under way, however long a write to the disk takes.
const (
	sessions = 4
	senders  = 16
	batch    = 20
)

func load(ctx context.Context, address string, keys, messages int) error {
	observer, err := client.DialSession(ctx, address)
	if err != nil {
		return err
	}
	defer observer.Close()
	if err := observer.Subscribe(ctx, "balances/+"); err != nil {
		return err
	}
	places := make(chan struct{}, window)
	numbers, failed := make(chan int), make(chan error, sessions)
	prefix := strconv.FormatInt(time.Now().UnixNano(), 36)
	start := time.Now()
	for range sessions {
		go func() { failed <- send(ctx, address, prefix, keys, numbers) }()
	}
	go func() {
		defer close(numbers)
		for n := range messages {
			places <- struct{}{}
			numbers <- n
		}
	}()
	done := 0
	for d, err := range observer.Messages(ctx) {
		if err != nil {
			return err
		}
		d.Ack()
		<-places
		if done++; done == messages {
			break
		}
	}
	fmt.Println(time.Since(start).Seconds())
	for range sessions {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

// send publishes the messages of these numbers over one session.
func send(ctx context.Context, address, prefix string, keys int, numbers <-chan int) error {
	session, err := client.DialSession(ctx, address)
	if err != nil {
		return err
	}
	defer session.Close()
	failed := make(chan error, senders)
	for range senders {
		go func() { failed <- publish(ctx, session, prefix, keys, numbers) }()
	}
	for range senders {
		err = errors.Join(err, <-failed)
	}
	return err
}

func publish(ctx context.Context, session *client.Session, prefix string, keys int, numbers <-chan int) error {
	for n := range numbers {
		messages := []client.Message{message(prefix, n, keys)}
		for open := true; open && len(messages) < batch; {
			select {
			case n, open = <-numbers:
				if open {
					messages = append(messages, message(prefix, n, keys))
				}
			default:
				open = false
			}
		}
		if err := session.Publish(ctx, messages...); err != nil {
			return err
		}
	}
	return nil
}

func message(prefix string, n, keys int) client.Message {
	key := strconv.Itoa(n % keys)
	m := consistent.JSON("deposits/"+key, deposit{key, 1})
	m.UserProperties = append(m.UserProperties, client.UserProperty{Name: "source", Value: "load"}, client.UserProperty{Name: "id", Value: prefix + strconv.Itoa(n)})
	return m
}
