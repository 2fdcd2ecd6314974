// Command mochi is a mochi-mqtt broker that answers the store's requests in its
// publish hook from a map in memory. With -data it keeps sessions and messages in a bolt
// database, each write synced, as the hook that comes with it does: for the crash harness
// (docs/reliability.md).
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/hooks/storage/bolt"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
	"go.etcd.io/bbolt"

	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	data := flag.String("data", "", "directory for a database; empty: everything is in memory")
	flag.Parse()
	s := mqtt.New(&mqtt.Options{InlineClient: true, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	h := &store{server: s, values: map[string][]byte{}, inline: s.NewClient(nil, "local", "store", true)}
	must(s.AddHook(new(auth.AllowHook), nil))
	must(s.AddHook(h, nil))
	if *data != "" {
		must(s.AddHook(new(bolt.Hook), &bolt.Options{Path: filepath.Join(*data, "mochi.db"), Options: &bbolt.Options{Timeout: 5 * time.Second}}))
	}
	l, err := net.Listen("tcp", *listen)
	must(err)
	must(s.AddListener(listeners.NewNet("tcp", l)))
	go func() { must(s.Serve()) }()
	fmt.Println("listening on", l.Addr())
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, os.Interrupt)
	<-end
	s.Close()
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// store answers requests where the broker hands over a publish.
type store struct {
	mqtt.HookBase
	server *mqtt.Server
	inline *mqtt.Client

	mu     sync.RWMutex
	values map[string][]byte // key → reply to GET, under mu
}

func (*store) ID() string           { return "store" }
func (*store) Provides(b byte) bool { return b == mqtt.OnPublish }

// OnPublish implements mqtt.Hook.
func (h *store) OnPublish(_ *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if pk.TopicName != wire.InvokeTopic {
		return pk, nil
	}
	response := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1},
		TopicName:   pk.Properties.ResponseTopic,
		Payload:     h.answer(pk.Payload),
		PacketID:    1, // the subscriber's is given by the broker
		Properties: packets.Properties{
			PayloadFormatFlag: true,
			ContentType:       "application/octet-stream",
			CorrelationData:   pk.Properties.CorrelationData,
			User: []packets.UserProperty{
				{Key: "__ts", Val: wire.Version}, {Key: "__stat", Val: "200"}, {Key: "__protVer", Val: "1.0"},
			},
		},
	}
	return pk, h.server.InjectPacket(h.inline, response)
}

func (h *store) answer(payload []byte) []byte {
	verb, value := wire.Command(payload)
	key := wire.Key(payload)
	if verb[0] == 'S' {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.values[string(key)] = wire.AppendBlob(nil, value)
		return []byte("+OK\r\n")
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	if reply, ok := h.values[string(key)]; ok {
		return reply
	}
	return []byte("$-1\r\n")
}
