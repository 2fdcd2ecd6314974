package consistent_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// Messages per second through a handler that publishes one output, on a server that
// syncs: exactly once, and at least once, which is a subscriber that publishes the
// output, waits for its PUBACK, and acknowledges. ns/op is the time per message.
func BenchmarkMessages(b *testing.B) {
	for _, keys := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("once/keys=%d", keys), func(b *testing.B) {
			addr := testserver.Start(b).Addr
			run(b, bank(b, dial(b, addr)))
			throughput(b, addr, keys)
		})
		b.Run(fmt.Sprintf("at-least-once/keys=%d", keys), func(b *testing.B) {
			addr := testserver.Start(b).Addr
			atLeastOnce(b, addr)
			throughput(b, addr, keys)
		})
	}
}

// atLeastOnce answers deposits as fast as can be, one after the other for each key, to
// keep their order.
func atLeastOnce(b *testing.B, addr string) {
	session, err := client.DialSession(b.Context(), addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = session.Close() })
	lanes := make(map[string]chan client.Delivery)
	if err := session.Subscribe(b.Context(), "deposits/+"); err != nil {
		b.Fatal(err)
	}
	deliver := func(d client.Delivery) {
		lane := lanes[d.Topic]
		if lane == nil {
			lane = make(chan client.Delivery, 2000)
			lanes[d.Topic] = lane
			go func() {
				for d := range lane {
					out := consistent.JSON("balances/"+d.Topic[len("deposits/"):], balance{"", 1})
					if err := session.Publish(context.Background(), out); err == nil {
						d.Ack()
					}
				}
			}()
		}
		lane <- d
	}
	go func() {
		for d, err := range session.Messages(b.Context()) {
			if err != nil {
				return
			}
			deliver(d)
		}
	}()
}

// throughput sends b.N messages, no more than 1,000 of them under way, and waits for
// their outputs.
func throughput(b *testing.B, addr string, keys int) {
	o := observe(b, addr, "balances/+")
	sender, err := client.DialSession(b.Context(), addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = sender.Close() })
	window := make(chan struct{}, 1000)
	b.ResetTimer()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		const batch = 20
		for n := 0; n < b.N; n += batch {
			var messages []consistent.Message
			for i := n; i < min(n+batch, b.N); i++ {
				window <- struct{}{}
				messages = append(messages, message(fmt.Sprint(i), deposit{fmt.Sprint(i % keys), 1}))
			}
			if err := sender.Publish(context.Background(), messages...); err != nil {
				b.Error(err)
			}
		}
	}()
	for range b.N {
		o.next(b)
		<-window
	}
	b.StopTimer()
	<-sent
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}
