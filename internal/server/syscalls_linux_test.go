//go:build !race

package server

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Sixteen GETs that come in one piece cost the server one read that finds them,
// one write of all answers, and one read that finds nothing more; and so does
// one GET.
func TestSystemCallsOfGets(t *testing.T) {
	s := start(t)
	for _, inflight := range []int{1, 16} {
		id := fmt.Sprint("client-", inflight)
		fd := dialIdle(t, s, id)
		defer syscall.Close(fd)
		c := &plainClient{t: t, fd: fd, in: make([]byte, 64<<10)}
		c.exchange(mqtt.AppendSubscribe(nil, mqtt.V5, &mqtt.Subscribe{PacketID: 1, Subscriptions: []mqtt.Subscription{{Filter: []byte(responseTopic + "/" + id), QoS: 1}}}), 1)
		c.exchange(request(nil, id, 1, stamp(), "SET", id, "value"), 2)
		var gets []byte
		for i := range inflight {
			gets = request(gets, id, uint16(i+1), "", "GET", id)
		}
		const rounds = 300
		reads, writes := systemCalls(t)
		c.reads, c.writes = 0, 0
		for range rounds {
			c.exchange(gets, 2*inflight)
		}
		readsAfter, writesAfter := systemCalls(t)
		r := float64(readsAfter-reads-c.reads) / rounds
		w := float64(writesAfter-writes-c.writes) / rounds
		t.Logf("%d GETs at once: %.2f reads and %.2f writes", inflight, r, w)
		// The runtime wakes itself now and then with a write and a read of its own.
		if r > 2.5 || w > 1.5 {
			t.Errorf("%d GETs at once: %.2f reads and %.2f writes, want 2 and 1", inflight, r, w)
		}
	}
}

// systemCalls gives how often this process has called read and write.
func systemCalls(t *testing.T) (reads, writes int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skip("this kernel doesn't count system calls: ", err)
	}
	if _, err := fmt.Sscanf(string(b[strings.Index(string(b), "syscr"):]), "syscr: %d\nsyscw: %d", &reads, &writes); err != nil {
		t.Fatal(err)
	}
	return reads, writes
}

// plainClient waits in its system calls, and counts them.
type plainClient struct {
	t             *testing.T
	fd            int
	in, acks      []byte
	reads, writes int
}

// exchange sends packets in one write, with the acknowledgements of what came
// last, and reads n packets.
func (c *plainClient) exchange(packets []byte, n int) {
	c.acks = append(c.acks, packets...)
	if _, err := syscall.Write(c.fd, c.acks); err != nil {
		c.t.Fatal(err)
	}
	c.writes++
	c.acks = c.acks[:0]
	have := 0
	for n > 0 {
		k, err := syscall.Read(c.fd, c.in[have:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil || k == 0 {
			c.t.Fatalf("read: %d, %v", k, err)
		}
		c.reads++
		have += k
		used := 0
		for {
			header, body, size, _, err := mqtt.Split(c.in[used:have], 0)
			if err != nil {
				c.t.Fatal(err)
			}
			if size == 0 {
				break
			}
			var p mqtt.Publish
			if mqtt.TypeOf(header) == mqtt.PUBLISH {
				if err := p.DecodeDelivery(mqtt.V5, header, body); err != nil {
					c.t.Fatal(err)
				}
				c.acks = mqtt.AppendAck(c.acks, mqtt.V5, mqtt.PUBACK, p.PacketID, mqtt.Success, "")
			}
			used += size
			n--
		}
		have = copy(c.in, c.in[used:have])
	}
}
