package bridge

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/fromserver"
)

// A broker that sends messages which do not pass, and takes none of the acknowledgements, loses its
// connection before they fill the memory. A pipe holds nothing for a peer that does not read.
func TestABrokerThatTakesNoAcknowledgements(t *testing.T) {
	t.Parallel()
	for _, qos := range []byte{1, 2} {
		near, far := net.Pipe()
		defer far.Close()
		defer near.Close()
		from := &side{name: "the other broker", nc: near, version: mqtt.V5, in: fromserver.NewReader(near, 1<<20), out: newOutput(near), interval: time.Minute}
		to := &side{name: "this broker", version: mqtt.V5, out: newOutput(nil)}
		stop := make(chan struct{})
		defer close(stop)
		go func() { _ = from.out.write(time.Minute, stop) }()
		one := mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{Topic: []byte("x"), QoS: qos, PacketID: 1})
		go func() {
			for some := bytes.Repeat(one, 1000); ; {
				if _, err := far.Write(some); err != nil {
					return
				}
			}
		}()
		p := &path{from: from, to: to, figures: new(Figures), log: slog.New(slog.DiscardHandler)}
		if err := p.run(); err == nil || !strings.Contains(err.Error(), "the other broker sends messages and takes no acknowledgements") {
			t.Errorf("QoS %d: %v", qos, err)
		}
		if size := from.out.size(); size > outputOwn+10 {
			t.Errorf("QoS %d: %d bytes waited", qos, size)
		}
	}
}
