package consistentprom_test

import (
	"fmt"
	"log"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistentprom"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

func ExampleNew() {
	metrics, err := consistentprom.New(prometheus.NewRegistry()) // or prometheus.DefaultRegisterer
	if err != nil {
		log.Fatal(err)
	}
	conn := consistenttest.NewBroker().Connect("bank") // or consistent.Dial
	_, err = consistent.New(conn, "bank", consistent.WithMetrics(metrics))
	fmt.Println(err)
	// Output: <nil>
}
