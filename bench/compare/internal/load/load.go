// Package load has clients ask a server in a closed loop, and measures it.
package load

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/latency"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
)

// Shape is how many connections ask how much at once.
type Shape struct {
	Connections, Inflight, ValueSize int
}

// ShapeOf is the shape of so many connections with so many requests under way each, and
// values of so many bytes.
func ShapeOf(connections, inflight, valueSize int) Shape {
	return Shape{connections, inflight, valueSize}
}

func (s Shape) String() string {
	size := fmt.Sprintf("%d B", s.ValueSize)
	if s.ValueSize >= 1024 {
		size = fmt.Sprintf("%d KiB", s.ValueSize>>10)
	}
	return fmt.Sprintf("%d × %d, %s", s.Connections, s.Inflight, size)
}

// KeyCount is how many keys the requests are spread over.
const KeyCount = 1000

// KeyName gives a key of 32 bytes.
func KeyName(i int) string { return fmt.Sprintf("bench-key-%022d", i) }

// Dial connects to a server in its own way.
func Dial(t *servers.Target, i int, s *client.Script) (client.Client, error) {
	switch t.Protocol {
	case servers.SpeaksRedis:
		return client.DialRedis(t.Addr, s)
	case servers.SpeaksNATS:
		return client.DialNATS(t.Addr, i, s)
	case servers.SpeaksEtcd:
		return client.DialEtcd(t.Addr, s)
	default:
		return client.DialStore(t.Addr, fmt.Sprint("client-", i), s)
	}
}

// DialAll gives each of n connections its share of the keys.
func DialAll(t *servers.Target, n int, s client.Script, keys []string) ([]client.Client, error) {
	var all []client.Client
	for i := range n {
		share := len(keys) / n
		own := s
		own.Keys = keys[i*share : (i+1)*share]
		c, err := Dial(t, i, &own)
		if err != nil {
			CloseAll(all)
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// CloseAll closes the clients.
func CloseAll(clients []client.Client) {
	for _, c := range clients {
		c.Close()
	}
}

// Preload sets every key once.
func Preload(t *servers.Target, keys []string, value string, connections, inflight int) error {
	clients, err := DialAll(t, connections, client.Script{Verb: "SET", Value: value, Window: inflight}, keys)
	if err != nil {
		return err
	}
	defer CloseAll(clients)
	passes := (len(keys)/connections + inflight - 1) / inflight
	_, _, err = Loop(clients, 5*time.Minute, func(round int, _ time.Time) bool { return round < passes })
	return err
}

// Loop runs the clients at once until more says no, which it is asked before
// each window, and gives how long the windows took. It takes longer than limit
// only to fail.
func Loop(clients []client.Client, limit time.Duration, more func(round int, now time.Time) bool) (*latency.Histogram, time.Duration, error) {
	var (
		wait sync.WaitGroup
		mu   sync.Mutex
		all  latency.Histogram
		errs []error
	)
	start := time.Now()
	for _, c := range clients {
		wait.Go(func() {
			var h latency.Histogram
			var err error
			stuck := time.AfterFunc(limit, func() { c.Close() })
			defer stuck.Stop()
			for i := 0; err == nil && more(i, time.Now()); i++ {
				err = c.Exchange(&h)
			}
			mu.Lock()
			defer mu.Unlock()
			all.Merge(&h)
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	wait.Wait()
	if len(errs) > 0 {
		return nil, 0, errs[0]
	}
	return &all, time.Since(start), nil
}

// measure runs the clients for a while and gives the figures.
func measureFor(t *servers.Target, clients []client.Client, d time.Duration) (report.Figures, error) {
	until := func(d time.Duration) func(int, time.Time) bool {
		end := time.Now().Add(d)
		return func(_ int, now time.Time) bool { return now.Before(end) }
	}
	if _, _, err := Loop(clients, d+client.Patience, until(d/5)); err != nil {
		return report.Figures{}, err
	}
	before := t.Procs.CPU()
	h, elapsed, err := Loop(clients, d+client.Patience, until(d))
	if err != nil {
		return report.Figures{}, err
	}
	return report.FiguresOf(h, elapsed, t.Procs.CPU()-before), nil
}

// Round measures one kind of request once.
func Round(t *servers.Target, verb string, s Shape, keys []string, d time.Duration) (report.Figures, error) {
	clients, err := DialAll(t, s.Connections, client.Script{Verb: verb, Value: strings.Repeat("v", s.ValueSize), Window: s.Inflight}, keys)
	if err != nil {
		return report.Figures{}, err
	}
	defer CloseAll(clients)
	return measureFor(t, clients, d)
}

// KeyNames gives the first n keys.
func KeyNames(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = KeyName(i)
	}
	return keys
}
