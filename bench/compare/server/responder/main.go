// Command responder is the glue beside a broker without a store: an MQTT client
// that subscribes to the store's request topic and answers GET and SET from a
// map in memory. It validates nothing and writes once per read, so what it
// costs is what any responder must cost at least.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"

	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

func main() {
	addr := flag.String("broker", "127.0.0.1:1883", "broker's `HOST:PORT`")
	flag.Parse()
	conn, err := net.Dial("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	r := &responder{values: map[string][]byte{}}
	out := wire.AppendConnect(nil, "responder", 0, 0)
	out = wire.AppendSubscribe(out, 1, wire.InvokeTopic, 1)
	in := make([]byte, 1<<20)
	for unread := 0; ; {
		if len(out) > 0 {
			if _, err := conn.Write(out); err != nil {
				log.Fatal(err)
			}
			out = out[:0]
		}
		n, err := conn.Read(in[unread:])
		if err != nil {
			log.Fatal(err)
		}
		unread += n
		at := 0
		for {
			header, body, n := wire.Split(in[at:unread])
			if n == 0 {
				break
			}
			out = r.packet(out, header, body)
			at += n
		}
		unread = copy(in, in[at:unread])
	}
}

type responder struct {
	values  map[string][]byte
	answers wire.Answers
	message wire.Message
	id      uint16
}

func (r *responder) packet(out []byte, header byte, body []byte) []byte {
	switch header & 0xF0 {
	case wire.Suback:
		fmt.Println("listening") // from here on requests arrive
	case wire.Publish:
		m := &r.message
		m.Parse(header, body)
		topic, correlation := m.Request()
		r.id = max(r.id+1, 1)
		out = wire.AppendAck(out, wire.Puback, m.ID)
		out = r.answers.AppendResponse(out, r.id, topic, correlation, true, r.answer(m.Payload))
	}
	return out
}

func (r *responder) answer(payload []byte) []byte {
	verb, value := wire.Command(payload)
	key := wire.Key(payload)
	if verb[0] == 'S' {
		r.values[string(key)] = wire.AppendBlob(nil, value)
		return []byte("+OK\r\n")
	}
	if reply, ok := r.values[string(key)]; ok {
		return reply
	}
	return []byte("$-1\r\n")
}
