package server

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"holdfast/internal/mqtt"
	"holdfast/internal/mqtttest"
)

// faulty is an Authorizer with a defect.
type faulty struct{}

func (faulty) Connect(*mqtt.Connect, net.Addr) (any, mqtt.ReasonCode, string) {
	return nil, mqtt.Success, ""
}
func (faulty) MaySubscribe(any, string) bool { return true }
func (faulty) MayPublish(_ any, topic []byte) bool {
	if string(topic) == "defect" {
		panic("a defect")
	}
	return true
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A panic on one connection's goroutine ends that connection with a log line,
// and nothing else.
func TestPanicEndsOneConnection(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	cfg := Default()
	cfg.Listen, cfg.DataDir = []string{"127.0.0.1:0"}, t.TempDir()
	cfg.Auth, cfg.Logger = faulty{}, slog.New(slog.NewTextHandler(&log, nil))
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Shutdown(t.Context()) })
	addr := s.Addrs()[0].String()
	subscriber := mqtttest.Connect(t, addr)
	subscriber.Subscribe("#", 1)
	unlucky := mqtttest.Connect(t, addr, mqtttest.ClientID("unlucky"), mqtttest.Will(mqtttest.Message{Topic: "will", Payload: "gone"}, 0))

	unlucky.SendPublish(mqtttest.Message{Topic: "defect", QoS: 1})
	unlucky.ExpectClosed()

	if got := subscriber.Receive(); got.Topic != "will" {
		t.Errorf("got %v, want the unlucky client's will", got)
	}
	mqtttest.Connect(t, addr, mqtttest.ClientID("unlucky")).Publish(mqtttest.Message{Topic: "fine", QoS: 1})
	if got := subscriber.Receive(); got.Topic != "fine" {
		t.Errorf("got %v, want what was published afterwards", got)
	}
	if text := log.String(); !strings.Contains(text, "a defect") || !strings.Contains(text, "unlucky") {
		t.Errorf("the log says nothing of it: %q", text)
	}
}
