// Command orders takes orders: each is a saga over an order, an item's stock and an account, with
// a price from outside and a deadline. See its README.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path"
	"syscall"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/publisher"
)

const usage = `orders serve [-name NAME]     process orders; run several, each with a name of its own
orders place [-orders N]      fill the stock and the accounts, place N orders, confirm most of them, and check the books`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("what to do?\n" + usage)
	}
	flags := flag.NewFlagSet("orders "+args[0], flag.ContinueOnError)
	address := flags.String("address", "localhost:1883", "host and port of the server")
	name := flags.String("name", "1", "of the instance, which it keeps when it is started again")
	deadline := flags.Duration("deadline", 10*time.Second, "for an offer to be confirmed")
	orders := flags.Int("orders", 20, "how many to place")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "serve":
		return serve(ctx, *address, *name, *deadline, out)
	case "place":
		return place(ctx, *address, *orders, out)
	}
	return fmt.Errorf("%q is no command\n%s", args[0], usage)
}

// market is the outside: a price that is another one each time, and now and then none.
func market(string) (cents int, err error) {
	if rand.IntN(20) == 0 {
		return 0, errors.New("the market does not answer")
	}
	return 50 + rand.IntN(100), nil
}

// serve processes orders until ctx ends.
func serve(ctx context.Context, address, name string, deadline time.Duration, out io.Writer) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	conn, err := consistent.Dial(ctx, address, client.WithClientID("orders-"+name), client.WithLogger(logger))
	if err != nil {
		return fmt.Errorf("%w (is the server running? go run ./cmd/holdfast serve)", err)
	}
	defer conn.Close()
	p, err := consistent.New(conn, "orders", consistent.WithShare("orders"), consistent.WithLogger(logger), consistent.WithBackoff(10*time.Millisecond, time.Second))
	if err != nil {
		return err
	}
	saga{market, deadline}.register(p)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- p.Run(running)
		stop()
	}()
	select {
	case <-p.Subscribed():
		fmt.Fprintf(out, "instance %s takes orders\n", name)
		<-running.Done()
	case <-running.Done():
	}
	stop()
	return <-ended
}

// event is a message to a topic, with an identity. Its type is the last level of the topic.
func event(source, id, topic string, v any) (consistent.Message, error) {
	m, err := consistent.Event(source, id, "orders."+path.Base(topic), v)
	m.Topic = topic
	return m, err
}

// A run of place uses these: few enough that orders meet, and that some find no stock or money.
const (
	items, accounts          = 3, 5
	centsEach, piecesPerItem = 20_000, 1000
)

// place fills the stock and the accounts, places orders, confirms three of four offers, awaits the
// end of all orders, and checks the books. Everything it sends has an ID from what it is about.
func place(ctx context.Context, address string, orders int, out io.Writer) error {
	session, err := client.DialSession(ctx, address, client.WithClientID("customers"), client.WithLogger(slog.New(slog.DiscardHandler)), client.WithQueueFull(client.QueueFullReject))
	if err != nil {
		return fmt.Errorf("%w (is the server running? go run ./cmd/holdfast serve)", err)
	}
	defer session.Close()
	if err := session.Subscribe(ctx, "orders/+/offer", "orders/+/shipped", "orders/+/cancelled"); err != nil {
		return err
	}
	events, err := publisher.New(session, publisher.WithBackoff(10*time.Millisecond, time.Second), publisher.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	send := func(id, topic string, v any) error {
		m, err := event("customers", id, topic, v)
		if err != nil {
			return err
		}
		return events.Publish(ctx, m, m) // twice, as networks do
	}
	for i := range items {
		item := fmt.Sprint("item-", i)
		if err := send("fill-"+item, "stock/"+item+"/fill", Fill{item, piecesPerItem}); err != nil {
			return err
		}
	}
	for i := range accounts {
		account := fmt.Sprint("account-", i)
		if err := send("deposit-"+account, "accounts/"+account+"/deposit", Deposit{account, centsEach}); err != nil {
			return err
		}
	}
	placed := make(chan error, 1)
	go func() {
		for i := range orders {
			id := fmt.Sprint("order-", i)
			if err := send("place-"+id, "orders/"+id+"/place", Place{id, fmt.Sprint("account-", i%accounts), fmt.Sprint("item-", i%items), 1 + i%7}); err != nil {
				placed <- err
				return
			}
		}
		placed <- nil
	}()
	if err := awaitEnds(ctx, session, orders, func(id string) error {
		return send("confirm-"+id, "orders/"+id+"/confirm", Confirm{id})
	}); err != nil {
		return err
	}
	if err := <-placed; err != nil {
		return err
	}
	c, err := client.Dial(ctx, address, client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	defer c.Close()
	return awaitBooks(ctx, c, out)
}

// awaitEnds confirms three of four offers, and returns when all orders have ended.
func awaitEnds(ctx context.Context, session *client.Session, orders int, confirm func(order string) error) error {
	ended := make(map[string]bool)
	for d, err := range session.Messages(ctx) {
		if err != nil {
			return err
		}
		var m struct{ Order string }
		var n int
		if err := json.Unmarshal(d.Payload, &m); err != nil {
			return fmt.Errorf("%s: %w", d.Topic, err)
		}
		if _, err := fmt.Sscanf(m.Order, "order-%d", &n); err != nil {
			return fmt.Errorf("%s: the order %q: %w", d.Topic, m.Order, err)
		}
		switch {
		case d.Topic != "orders/"+m.Order+"/offer":
			ended[m.Order] = true
		case n%4 != 3:
			if err := confirm(m.Order); err != nil {
				return err
			}
		}
		d.Ack()
		if len(ended) == orders {
			break
		}
	}
	return nil
}

// awaitBooks waits until the stock has heard of the ends of all orders, and checks the books.
func awaitBooks(ctx context.Context, c *client.Client, out io.Writer) error {
	for {
		b, err := readBooks(ctx, c)
		if err != nil {
			return err
		}
		if b.Stock.Reserved == 0 && b.Stock.Sold == b.Sold {
			fmt.Fprintln(out, b)
			if err := b.check(accounts*centsEach, items*piecesPerItem); err != nil {
				return err
			}
			fmt.Fprintln(out, "the books are right")
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), b.check(accounts*centsEach, items*piecesPerItem))
		}
	}
}
