package consistent_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

// Reading is what a sensor publishes.
type Reading struct {
	Sensor string
	Value  float64
}

// Key is the business key of a reading.
func (r Reading) Key() string { return r.Sensor }

// Highest is the state of a sensor.
type Highest struct{ Value float64 }

// A handler tells when a sensor reaches a new high. A reading that comes twice tells it
// once.
func ExampleHandle() {
	broker := consistenttest.NewBroker() // in memory; consistent.Dial connects to a real one
	p, err := consistent.New(broker.Connect("highs"), "highs", consistent.WithShare("highs"))
	if err != nil {
		log.Fatal(err)
	}
	err = consistent.Handle(p, "sensors/+", Reading.Key,
		func(c *consistent.Context, s Highest, r Reading) (Highest, []consistent.Message, error) {
			if r.Value <= s.Value {
				return s, nil, nil
			}
			return Highest{r.Value}, []consistent.Message{consistent.JSON("highs/"+c.Key(), r.Value)}, nil
		})
	if err != nil {
		log.Fatal(err)
	}
	stop := start(p)
	defer stop()

	first := consistenttest.Event("1", consistent.JSON("sensors/t7", Reading{"t7", 21.5}))
	broker.Publish(first, consistenttest.Event("2", consistent.JSON("sensors/t7", Reading{"t7", 23})), first)
	_ = broker.Settle(context.Background())
	for _, m := range broker.Published("highs/#") {
		fmt.Println(m.Topic, string(m.Payload))
	}
	// Output:
	// highs/t7 21.5
	// highs/t7 23
}

// The key of a message can be made of its topic.
func ExampleHandleByMessage() {
	broker := consistenttest.NewBroker()
	p, err := consistent.New(broker.Connect("count"), "count")
	if err != nil {
		log.Fatal(err)
	}
	device := func(m *consistent.Message) string { return strings.TrimPrefix(m.Topic, "devices/") }
	_ = consistent.HandleByMessage(p, "devices/+", device,
		func(c *consistent.Context, n int, _ any) (int, []consistent.Message, error) {
			return n + 1, []consistent.Message{consistent.JSON("counts/"+c.Key(), n+1)}, nil
		})
	stop := start(p)
	defer stop()
	broker.Publish(consistenttest.Event("1", consistent.JSON("devices/a", "on")), consistenttest.Event("2", consistent.JSON("devices/a", "off")))
	_ = broker.Settle(context.Background())
	for _, m := range broker.Published("counts/#") {
		fmt.Println(m.Topic, string(m.Payload))
	}
	// Output:
	// counts/a 1
	// counts/a 2
}

// An option says what is wrong with its value.
func ExampleNew() {
	_, err := consistent.New(consistenttest.NewBroker().Connect("p"), "p", consistent.WithBackoff(time.Minute, time.Second))
	fmt.Println(err)
	// Output: invalid option: WithBackoff(1m0s, 1s): the first must be positive and the second no smaller
}

// start runs a processor until stop is called.
func start(p *consistent.Processor) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	<-p.Subscribed()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			log.Fatal(err)
		}
	}
}
