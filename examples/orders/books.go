package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-mqtt/holdfast/client"
)

// Books is what all states say together.
type Books struct {
	Open, Shipped, Cancelled int // orders
	Paid                     int // cents, by the orders that were shipped
	Left                     int // cents in all accounts
	Stock                    Stock
	Sold                     int // pieces, by the orders that were shipped
	Deadlines                int // timers that wait
}

// readBooks reads all states.
func readBooks(ctx context.Context, c *client.Client) (b Books, err error) {
	return b, errors.Join(
		read(ctx, c, "order/", func(o Order) {
			switch o.Status {
			case Done:
				b.Shipped++
				b.Paid += o.Cents
				b.Sold += o.Quantity
			case Ended:
				b.Cancelled++
			default:
				b.Open++
			}
		}),
		read(ctx, c, "account/", func(a Account) { b.Left += a.Cents }),
		read(ctx, c, "stock/", func(s Stock) {
			b.Stock.Free += s.Free
			b.Stock.Reserved += s.Reserved
			b.Stock.Sold += s.Sold
		}),
		timers(ctx, c, &b.Deadlines))
}

// timers counts the deadlines of orders that wait.
func timers(ctx context.Context, c *client.Client, n *int) error {
	for _, err := range c.Timers(ctx, "orders/") {
		if err != nil {
			return err
		}
		*n++
	}
	return nil
}

// read decodes the states of a handler.
func read[S any](ctx context.Context, c *client.Client, prefix string, each func(S)) error {
	for e, err := range c.ScanValues(ctx, client.LiteralPattern(prefix)+"*") {
		if err != nil {
			return err
		}
		var s S
		if err := json.Unmarshal(e.Bytes, &s); err != nil {
			return fmt.Errorf("%s: %w", e.Key, err)
		}
		each(s)
	}
	return nil
}

// check compares the books with what was paid in and put into the stock, once no order is open.
func (b Books) check(paidIn, filled int) error {
	var wrong []string
	say := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	say(b.Open == 0, "%d orders are open", b.Open)
	say(b.Left+b.Paid == paidIn, "%d cents are left and %d were paid, of %d", b.Left, b.Paid, paidIn)
	say(b.Stock.Free+b.Stock.Sold == filled, "%d pieces are in the stock and %d were sold, of %d", b.Stock.Free, b.Stock.Sold, filled)
	say(b.Stock.Reserved == 0, "%d pieces are reserved", b.Stock.Reserved)
	say(b.Stock.Sold == b.Sold, "the stock has sold %d pieces, the orders %d", b.Stock.Sold, b.Sold)
	say(b.Deadlines == 0, "%d deadlines wait", b.Deadlines)
	if len(wrong) > 0 {
		return errors.New("the books are wrong: " + strings.Join(wrong, "; "))
	}
	return nil
}

func (b Books) String() string {
	return fmt.Sprintf("%d orders shipped, %d cancelled, %d open; %d cents paid, %d left; %d pieces sold, %d free", b.Shipped, b.Cancelled, b.Open, b.Paid, b.Left, b.Stock.Sold, b.Stock.Free)
}
