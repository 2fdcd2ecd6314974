package main

import (
	"time"

	"github.com/holdfast-mqtt/holdfast/consistent"
)

// The messages. Those of an order are published to orders/ID/…, those of an account to
// accounts/ID/…, those of an item to stock/ITEM/….
type (
	// Place orders a quantity of an item; it comes from the customer.
	Place struct {
		Order, Account, Item string
		Quantity             int
	}
	// Offer tells the customer the price, which holds until the deadline.
	Offer struct {
		Order    string
		Cents    int
		Deadline time.Time
	}
	// Confirm accepts the offer; it comes from the customer.
	Confirm struct{ Order string }
	// Expire says that the deadline of an order is over: a timer, which is set with the order.
	Expire struct{ Order string }
	// Shipped and Cancelled end an order.
	Shipped struct {
		Order string
		Cents int
	}
	Cancelled struct{ Order, Why string }

	// Reserve, Release and Sell move a quantity between what is free, reserved and sold.
	// Reserve is answered by Reserved or SoldOut.
	Reserve struct {
		Order, Item string
		Quantity    int
	}
	Release  Reserve
	Sell     Reserve
	Reserved struct{ Order string }
	SoldOut  struct{ Order string }

	// Deposit puts money into an account.
	Deposit struct {
		Account string
		Cents   int
	}
	// Charge takes money from an account. It is answered by Charged or Refused.
	Charge struct {
		Order, Account string
		Cents          int
	}
	Charged struct{ Order string }
	Refused struct{ Order string }

	// Fill puts a quantity into the stock.
	Fill struct {
		Item     string
		Quantity int
	}
)

// Status is how far an order has come.
type Status string

// An order goes from one of these to the next, unless it is cancelled.
const (
	Reserving Status = "reserving" // the stock is asked
	Offered   Status = "offered"   // the customer is asked
	Charging  Status = "charging"  // the account is asked
	Done      Status = "shipped"
	Ended     Status = "cancelled"
)

// Order is the state of an order.
type Order struct {
	Place
	Status   Status
	Cents    int // the price of all, as it was outside when the order was placed
	Deadline time.Time
}

// endedFor is for how long the state of an order stays after its end.
const endedFor = 24 * time.Hour

// saga is what the handlers of orders need from outside.
type saga struct {
	price    func(item string) (cents int, err error) // at the moment, of one piece
	deadline time.Duration                            // for an offer to be confirmed
}

func order(id, what string, v any) consistent.Message {
	return consistent.JSON("orders/"+id+"/"+what, v)
}

func stock(item, what string, v any) consistent.Message {
	return consistent.JSON("stock/"+item+"/"+what, v)
}

// ending has the state of an order go some time after its end, whichever message comes last; and
// at once if there is no order.
func ending[M any](h consistent.HandlerFunc[Order, M]) consistent.HandlerFunc[Order, M] {
	return func(c *consistent.Context, o Order, m M) (Order, []consistent.Message, error) {
		o, out, err := h(c, o, m)
		switch o.Status {
		case "":
			c.Delete()
		case Done, Ended:
			c.ExpireIn(endedFor)
		}
		return o, out, err
	}
}

// timeout is the ID of an order's timer.
func timeout(id string) string { return "orders/" + id + "/expire" }

// cancel ends an order and its timer, and gives back what is reserved for it.
func cancel(o Order, why string, reserved bool) (Order, []consistent.Message, error) {
	o.Status = Ended
	out := []consistent.Message{order(o.Order, "cancelled", Cancelled{o.Order, why}), consistent.CancelTimer(timeout(o.Order))}
	if reserved {
		out = append(out, stock(o.Item, "release", Release{o.Order, o.Item, o.Quantity}))
	}
	return o, out, nil
}

// place begins the saga, and sets its timer. The price is captured: it is another one the next
// time, and a message that is processed again gets the first.
func (s saga) place(c *consistent.Context, o Order, m Place) (Order, []consistent.Message, error) {
	if o.Status != "" {
		return o, nil, nil // there is an order with this ID
	}
	cents, err := consistent.Capture(c, "price", func() (int, error) { return s.price(m.Item) })
	if err != nil {
		return o, nil, err // tried again
	}
	o = Order{Place: m, Status: Reserving, Cents: cents * m.Quantity, Deadline: c.Now().Add(s.deadline)}
	return o, []consistent.Message{
		stock(m.Item, "reserve", Reserve{m.Order, m.Item, m.Quantity}),
		consistent.At(o.Deadline, order(m.Order, "expire", Expire{m.Order}).WithTimerID(timeout(m.Order))),
	}, nil
}

func reserved(_ *consistent.Context, o Order, _ Reserved) (Order, []consistent.Message, error) {
	switch o.Status {
	case Reserving:
		o.Status = Offered
		return o, []consistent.Message{order(o.Order, "offer", Offer{o.Order, o.Cents, o.Deadline})}, nil
	case Ended: // the deadline was faster
		return o, []consistent.Message{stock(o.Item, "release", Release{o.Order, o.Item, o.Quantity})}, nil
	}
	return o, nil, nil
}

func soldOut(_ *consistent.Context, o Order, _ SoldOut) (Order, []consistent.Message, error) {
	if o.Status != Reserving {
		return o, nil, nil
	}
	return cancel(o, "sold out", false)
}

func confirm(_ *consistent.Context, o Order, _ Confirm) (Order, []consistent.Message, error) {
	if o.Status != Offered {
		return o, nil, nil
	}
	o.Status = Charging
	return o, []consistent.Message{consistent.JSON("accounts/"+o.Account+"/charge", Charge{o.Order, o.Account, o.Cents})}, nil
}

// charged is the step for the payment. The timer is not needed any more; if it was faster, expire
// finds an order that has ended.
func charged(_ *consistent.Context, o Order, _ Charged) (Order, []consistent.Message, error) {
	if o.Status != Charging {
		return o, nil, nil
	}
	o.Status = Done
	return o, []consistent.Message{
		stock(o.Item, "sell", Sell{o.Order, o.Item, o.Quantity}),
		order(o.Order, "shipped", Shipped{o.Order, o.Cents}),
		consistent.CancelTimer(timeout(o.Order)),
	}, nil
}

func refused(_ *consistent.Context, o Order, _ Refused) (Order, []consistent.Message, error) {
	if o.Status != Charging {
		return o, nil, nil
	}
	return cancel(o, "the account has not enough", true)
}

// expire is the step for the deadline. An order that is being charged goes on.
func expire(_ *consistent.Context, o Order, _ Expire) (Order, []consistent.Message, error) {
	switch o.Status {
	case Reserving:
		return cancel(o, "the deadline is over", false) // what will be reserved is released then
	case Offered:
		return cancel(o, "the deadline is over", true)
	}
	return o, nil, nil
}

// Stock is the state of an item.
type Stock struct{ Free, Reserved, Sold int }

func fill(_ *consistent.Context, s Stock, m Fill) (Stock, []consistent.Message, error) {
	s.Free += m.Quantity
	return s, nil, nil
}

func reserve(_ *consistent.Context, s Stock, m Reserve) (Stock, []consistent.Message, error) {
	if s.Free < m.Quantity {
		return s, []consistent.Message{order(m.Order, "sold-out", SoldOut{m.Order})}, nil
	}
	s.Free -= m.Quantity
	s.Reserved += m.Quantity
	return s, []consistent.Message{order(m.Order, "reserved", Reserved{m.Order})}, nil
}

func release(_ *consistent.Context, s Stock, m Release) (Stock, []consistent.Message, error) {
	s.Reserved -= m.Quantity
	s.Free += m.Quantity
	return s, nil, nil
}

func sell(_ *consistent.Context, s Stock, m Sell) (Stock, []consistent.Message, error) {
	s.Reserved -= m.Quantity
	s.Sold += m.Quantity
	return s, nil, nil
}

// Account is the state of an account.
type Account struct{ Cents int }

func deposit(_ *consistent.Context, a Account, m Deposit) (Account, []consistent.Message, error) {
	a.Cents += m.Cents
	return a, nil, nil
}

func charge(_ *consistent.Context, a Account, m Charge) (Account, []consistent.Message, error) {
	if a.Cents < m.Cents {
		return a, []consistent.Message{order(m.Order, "refused", Refused{m.Order})}, nil
	}
	a.Cents -= m.Cents
	return a, []consistent.Message{order(m.Order, "charged", Charged{m.Order})}, nil
}

// register registers the handlers of orders, items and accounts, each with a state of its own.
func (s saga) register(p *consistent.Processor) {
	orders := consistent.WithName("order")
	_ = consistent.Handle(p, "orders/+/place", func(m Place) string { return m.Order }, ending(s.place), orders)
	_ = consistent.Handle(p, "orders/+/reserved", func(m Reserved) string { return m.Order }, ending(reserved), orders)
	_ = consistent.Handle(p, "orders/+/sold-out", func(m SoldOut) string { return m.Order }, ending(soldOut), orders)
	_ = consistent.Handle(p, "orders/+/confirm", func(m Confirm) string { return m.Order }, ending(confirm), orders)
	_ = consistent.Handle(p, "orders/+/charged", func(m Charged) string { return m.Order }, ending(charged), orders)
	_ = consistent.Handle(p, "orders/+/refused", func(m Refused) string { return m.Order }, ending(refused), orders)
	_ = consistent.Handle(p, "orders/+/expire", func(m Expire) string { return m.Order }, ending(expire), orders)
	items := consistent.WithName("stock")
	_ = consistent.Handle(p, "stock/+/fill", func(m Fill) string { return m.Item }, fill, items)
	_ = consistent.Handle(p, "stock/+/reserve", func(m Reserve) string { return m.Item }, reserve, items)
	_ = consistent.Handle(p, "stock/+/release", func(m Release) string { return m.Item }, release, items)
	_ = consistent.Handle(p, "stock/+/sell", func(m Sell) string { return m.Item }, sell, items)
	accounts := consistent.WithName("account")
	_ = consistent.Handle(p, "accounts/+/deposit", func(m Deposit) string { return m.Account }, deposit, accounts)
	_ = consistent.Handle(p, "accounts/+/charge", func(m Charge) string { return m.Account }, charge, accounts)
}
