package client_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// A GET that waits for its answer before the next one, and GETs of many goroutines over one
// connection.
func BenchmarkGet(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			c, err := client.Dial(b.Context(), testserver.Shared().Addr)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			ctx := context.Background()
			if _, err := c.Set(ctx, "bench", make([]byte, 64)); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetParallelism(goroutines)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, found, err := c.Get(ctx, "bench"); !found || err != nil {
						b.Error(found, err)
						return
					}
				}
			})
		})
	}
}

// Messages of 64 bytes from one session to another: published in groups of 20, received and
// acknowledged one by one.
func BenchmarkMessages(b *testing.B) {
	addr := testserver.Shared().Addr
	session := func() *client.Session {
		s, err := client.DialSession(b.Context(), addr)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close() })
		return s
	}
	to, from := session(), session()
	if err := to.Subscribe(b.Context(), "bench/messages"); err != nil {
		b.Fatal(err)
	}
	const group = 20
	var messages [group]client.Message
	for i := range messages {
		messages[i] = client.Message{Topic: "bench/messages", Payload: make([]byte, 64)}
	}
	b.ReportAllocs()
	b.ResetTimer()
	failed := make(chan error, 1)
	go func() {
		for n := 0; n < b.N; n += group {
			if err := from.Publish(context.Background(), messages[:min(group, b.N-n)]...); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	n := 0
	for d, err := range to.Messages(b.Context()) {
		if err != nil {
			b.Fatal(err)
		}
		d.Ack()
		if n++; n >= b.N {
			break
		}
	}
	if err := <-failed; err != nil {
		b.Error(err)
	}
}
