package trace

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

func started(t *testing.T, tracer *Tracer, f Filter) *Trace {
	t.Helper()
	if f.Rate == 0 {
		f.Rate = MaxRate
	}
	one, err := tracer.Start(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(one.End)
	return one
}

// next is the next line without its time.
func next(t *testing.T, one *Trace) string {
	t.Helper()
	select {
	case line := <-one.Lines():
		if at := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z `).FindString(line); at != "" {
			return line[len(at):]
		}
		t.Fatalf("the line %q does not begin with a time", line)
	default:
		t.Fatal("there is no line")
	}
	return ""
}

const secret = "5ecret"

func TestLinesOfPackets(t *testing.T) {
	t.Parallel()
	connect := &mqtt.Connect{
		Version: mqtt.V5, CleanStart: true, KeepAlive: 60, ClientID: []byte("sensor-7"), SessionExpiry: 3600,
		HasUsername: true, Username: []byte(secret), HasPassword: true, Password: []byte(secret),
		HasWill: true, Will: mqtt.Will{Topic: []byte("gone"), QoS: 1, Retain: true, Payload: []byte(secret)},
	}
	user := mqtt.AppendUserProp(mqtt.AppendUserProp(nil, "a", secret), "b c", secret)
	publish := &mqtt.Publish{
		QoS: 1, PacketID: 7, Retain: true, Topic: []byte("plant/7"), Payload: []byte("21.5"),
		Props: mqtt.PublishProps{HasMessageExpiry: true, MessageExpiry: 60, HasResponseTopic: true, ResponseTopic: []byte("answers"), HasCorrelationData: true, CorrelationData: bytes.Repeat([]byte{0xab}, 17), Raw: user},
	}
	for _, c := range []struct {
		packet  []byte
		version mqtt.Version
		want    string
	}{
		{mqtt.AppendConnect(nil, connect), mqtt.V5, `CONNECT v5.0 clean-start keep-alive=60 session-expiry=3600 request-problem-info=0 will: topic=gone qos=1 retain payload=6; user-name password bytes=`},
		{mqtt.AppendConnack(nil, mqtt.V5, &mqtt.Connack{SessionPresent: true}), mqtt.V5, `CONNACK session-present 0x00 (Success)`},
		{mqtt.AppendConnack(nil, mqtt.V311, &mqtt.Connack{}), mqtt.V311, `CONNACK code=0 bytes=4`},
		{mqtt.AppendPublish(nil, mqtt.V5, publish), mqtt.V5, `PUBLISH id=7 qos=1 retain topic=plant/7 expiry=60 response-topic=answers correlation=abababababababababababababababab… user=a user="b c" payload=4 bytes=`},
		{mqtt.AppendPublish(nil, mqtt.V311, &mqtt.Publish{Topic: []byte("a b"), Payload: []byte("x")}), mqtt.V311, `PUBLISH qos=0 topic="a b" payload=1 bytes=8`},
		{mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBACK, 7, mqtt.QuotaExceeded, "no room"), mqtt.V5, `PUBACK id=7 0x97 (Quota exceeded) reason="no room" bytes=`},
		{mqtt.AppendAck(nil, mqtt.V5, mqtt.PUBREL, 258, mqtt.Success, ""), mqtt.V5, `PUBREL id=258 bytes=4`},
		{mqtt.AppendSubscribe(nil, mqtt.V5, &mqtt.Subscribe{PacketID: 2, Subscriptions: []mqtt.Subscription{{Filter: []byte("a/#"), QoS: 2, NoLocal: true}}}), mqtt.V5, `SUBSCRIBE id=2 filter=a/# qos=2 no-local bytes=`},
		{mqtt.AppendSuback(nil, mqtt.V5, 2, []mqtt.ReasonCode{1, 0x87}, ""), mqtt.V5, `SUBACK id=2 0x01 (Granted QoS 1) 0x87 (Not authorized) bytes=7`},
		{mqtt.AppendPingresp(nil), mqtt.V5, `PINGRESP bytes=2`},
		{mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{Code: mqtt.SessionTakenOver}), mqtt.V5, `DISCONNECT 0x8e (Session taken over)`},
		{mqtt.AppendAuth(nil, &mqtt.Auth{Code: mqtt.ContinueAuthentication, HasAuthMethod: true, AuthMethod: []byte("JWT"), HasAuthData: true, AuthData: []byte(secret)}), mqtt.V5, `AUTH 0x18 (Continue authentication) auth-method=JWT auth-data-bytes=6 bytes=`},
		{[]byte{0x30}, mqtt.V5, `PUBLISH qos=0 malformed bytes=1`},
	} {
		var tracer Tracer
		one := started(t, &tracer, Filter{Client: "sensor-7"})
		p := &Packet{Client: "sensor-7", Version: c.version, Bytes: c.packet}
		if mqtt.TypeOf(c.packet[0]) == mqtt.CONNECT {
			p.Client, p.Version = "", 0 // it is not known before
		}
		tracer.Packets().Packet(p)
		line := next(t, one)
		if !strings.HasPrefix(line, "sensor-7 in  "+c.want) {
			t.Errorf("got  %q\nwant %q", line, c.want)
		}
		if strings.Contains(line, secret) {
			t.Errorf("the line has a secret: %q", line)
		}
	}
}

// Of a payload a line has as many bytes as were asked for, also of one that stands elsewhere.
func TestPayloadIsShownAsFarAsAskedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		most       int
		here, away string
		want       string
	}{
		{0, "21.5", "", `payload=4 bytes=`}, {2, "21.5", "", `payload=4 "21" bytes=`}, {4, "21.5", "", `payload=4 "21.5" bytes=`},
		{256, "21.5", "", `payload=4 "21.5" bytes=`}, {6, "21.5", "°C", `payload=7 "21.5°" bytes=`}, {2, "", "21.5", `payload=4 "21" bytes=`},
	} {
		var tracer Tracer
		one := started(t, &tracer, Filter{Client: "a", Payload: c.most})
		packet := mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{Topic: []byte("t"), Payload: []byte(c.here + c.away)})
		packet = packet[:len(packet)-len(c.away)]
		tracer.Packets().Packet(&Packet{Client: "a", Version: mqtt.V5, Out: true, Bytes: packet, Elsewhere: []byte(c.away)})
		if line := next(t, one); !strings.Contains(line, "a out PUBLISH qos=0 topic=t "+c.want) {
			t.Errorf("%+v: %q", c, line)
		}
	}
}

func TestLinesOfCommands(t *testing.T) {
	t.Parallel()
	var tracer Tracer
	all := started(t, &tracer, Filter{Key: "plant/*", Payload: 3})
	mine := started(t, &tracer, Filter{Key: "plant/?", Client: "me"})
	for _, c := range []Command{
		{Client: "me", Verb: "SET", Key: []byte("plant/7"), Outcome: "ok", Version: []byte("1:2:n"), Value: []byte("21.5")},
		{Client: "other", Verb: "GET", Key: []byte("plant/7"), Outcome: "missed"},
		{Client: "me", Verb: "GET", Key: []byte("house/7"), Outcome: "ok"},
		{Client: "me", Verb: "DEL", Key: []byte("plant/\xff"), Outcome: "error", Fault: "syntax error"},
	} {
		tracer.Commands().Command(&c)
	}
	for one, want := range map[*Trace][]string{
		all: {
			`me SET plant/7 ok version=1:2:n value=4 "21."`, `other GET plant/7 missed`, `me DEL "plant/\xff" error (syntax error)`,
		},
		mine: {`me SET plant/7 ok version=1:2:n value=4`, `me DEL "plant/\xff" error (syntax error)`},
	} {
		for _, line := range want {
			if got := next(t, one); got != line {
				t.Errorf("got %q, want %q", got, line)
			}
		}
		if seen, dropped := one.Seen(); seen != int64(len(want)) || dropped != 0 || len(one.Lines()) > 0 {
			t.Errorf("%d seen, %d dropped, %d left; want %d", seen, dropped, len(one.Lines()), len(want))
		}
	}
}

// While nothing is traced a packet costs nothing but a look.
func TestNoTraceAllocatesNothing(t *testing.T) {
	t.Parallel()
	var tracer Tracer
	one := started(t, &tracer, Filter{Client: "a"})
	one.End()
	for _, tracer := range []*Tracer{nil, &tracer} {
		if tracer.Packets() != nil || tracer.Commands() != nil {
			t.Error("there are traces")
		}
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	var tracer Tracer
	for _, f := range []Filter{
		{Rate: 1}, {Client: "a"}, {Client: "a", Rate: MaxRate + 1}, {Client: "a", Rate: 1, Payload: MaxPayload + 1}, {Key: "[", Rate: 1},
	} {
		if _, err := tracer.Start(f); err == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
	var running []*Trace
	for range MaxTraces {
		running = append(running, started(t, &tracer, Filter{Client: "a", Rate: MaxRate, Payload: MaxPayload}))
	}
	if _, err := tracer.Start(Filter{Client: "a", Rate: 1}); err != ErrTooMany {
		t.Errorf("one more than may run: %v", err)
	}
	running[0].End()
	running[0].End()
	started(t, &tracer, Filter{Key: "*"})
	if _, err := tracer.Start(Filter{Client: "a", Rate: 1}); err != ErrTooMany {
		t.Errorf("after one has ended and another one began: %v", err)
	}
}

// Lines beyond the rate are counted, and there are lines again in the next second.
func TestRate(t *testing.T) {
	t.Parallel()
	one := &Trace{filter: Filter{Rate: 3}}
	at := time.Unix(1000, 0)
	for second, want := range []int64{0, 2, 2} {
		for i := range []int{3, 5, 1}[second] {
			admitted := one.admit(at.Add(time.Duration(second)*time.Second + time.Duration(i)))
			if admitted != (i < 3) {
				t.Errorf("line %d of second %d: %v", i, second, admitted)
			}
		}
		if _, dropped := one.Seen(); dropped != want {
			t.Errorf("%d dropped after second %d, want %d", dropped, second, want)
		}
	}
}

// A reader that takes nothing costs a bounded number of lines, and no packet waits for it.
func TestReaderThatStandsStill(t *testing.T) {
	t.Parallel()
	var tracer Tracer
	one := started(t, &tracer, Filter{Client: "a"})
	give := func(n int) {
		for range n {
			one.give([]byte("x"))
		}
	}
	give(waiting)
	if _, dropped := one.Seen(); dropped != 0 {
		t.Errorf("%d dropped at the bound", dropped)
	}
	give(1)
	if _, dropped := one.Seen(); dropped != 1 || len(one.Lines()) != waiting {
		t.Errorf("%d dropped one above the bound, %d lines wait", dropped, len(one.Lines()))
	}
}

func TestLinesAreBounded(t *testing.T) {
	t.Parallel()
	props := []byte(nil)
	for i := range 2000 {
		props = mqtt.AppendUserProp(props, fmt.Sprint(i), "x")
	}
	var subscriptions []mqtt.Subscription
	for range 200 {
		subscriptions = append(subscriptions, mqtt.Subscription{Filter: bytes.Repeat([]byte{0x7f}, 60_000)})
	}
	for _, packet := range [][]byte{
		mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{Topic: bytes.Repeat([]byte("t"), 65_535), Payload: make([]byte, 1<<20), Props: mqtt.PublishProps{Raw: props}}),
		mqtt.AppendSubscribe(nil, mqtt.V5, &mqtt.Subscribe{PacketID: 2, Subscriptions: subscriptions}),
	} {
		var tracer Tracer
		one := started(t, &tracer, Filter{Client: "a", Payload: MaxPayload})
		tracer.Packets().Packet(&Packet{Client: "a", Version: mqtt.V5, Bytes: packet})
		if line := <-one.Lines(); len(line) > maxLine+len("…") {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
}

// Traces begin and end while packets are shown to them.
func TestTracesAtOnce(t *testing.T) {
	t.Parallel()
	var tracer Tracer
	packet := mqtt.AppendPingresp(nil)
	var showing, tracing sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		showing.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if ts := tracer.Packets(); ts != nil {
						ts.Packet(&Packet{Client: "a", Version: mqtt.V5, Bytes: packet})
					}
				}
			}
		})
	}
	for range MaxTraces {
		tracing.Go(func() {
			for range 50 {
				one, err := tracer.Start(Filter{Client: "a", Rate: MaxRate})
				if err != nil {
					t.Error(err)
					return
				}
				<-one.Lines()
				one.End()
			}
		})
	}
	tracing.Wait()
	close(stop)
	showing.Wait()
	if tracer.Packets() != nil || tracer.running.Load() != 0 {
		t.Error("a trace is left")
	}
}

// Whatever the bytes are, they make a line.
func FuzzPacket(f *testing.F) {
	f.Add(mqtt.AppendConnect(nil, &mqtt.Connect{Version: mqtt.V5, ClientID: []byte("a")}), byte(5))
	f.Add(mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{Topic: []byte("t"), QoS: 1, PacketID: 1}), byte(5))
	f.Add([]byte{0x82, 0xff, 0xff, 0xff, 0x7f, 0, 1, 2}, byte(4))
	f.Fuzz(func(t *testing.T, packet []byte, version byte) {
		var tracer Tracer
		started(t, &tracer, Filter{Client: "a", Payload: MaxPayload})
		tracer.Packets().Packet(&Packet{Client: "a", Version: mqtt.Version(version), Bytes: packet})
	})
}
