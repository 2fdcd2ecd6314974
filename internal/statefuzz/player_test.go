package statefuzz

import (
	"net"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// player is one connection of a sequence.
type player struct {
	g    *generator
	acks *generator // the goroutine that reads has its own
	conn net.Conn

	mu     sync.Mutex
	broken bool // guarded by mu: a write failed
}

// stalled is how long a write may wait for the server, which may well have stopped
// reading; then the connection is given up.
const stalled = 100 * time.Millisecond

func (p *player) write(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken {
		return false
	}
	_ = p.conn.SetWriteDeadline(time.Now().Add(stalled))
	_, err := p.conn.Write(b)
	p.broken = err != nil
	return !p.broken
}

// play is what one connection does in a sequence.
func play(addr string, seed, stream uint64) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return // the checks will find that out
	}
	defer conn.Close()
	p := &player{g: newGenerator(seed, 2*stream), acks: newGenerator(seed, 2*stream+1), conn: conn}
	var reading sync.WaitGroup
	if connect := p.g.connect(); !p.g.oneIn(50) {
		p.acks.version = p.g.version
		p.write(connect)
	}
	deaf := p.g.oneIn(6)
	if !deaf {
		reading.Go(p.read)
	}
	for range 10 + p.g.IntN(200) {
		b := p.g.next()
		for p.g.oneIn(2) { // several in one write
			b = append(b, p.g.next()...)
		}
		if p.g.oneIn(500) { // the rest never comes
			b = b[:p.g.IntN(len(b)+1)]
			p.write(b)
			break
		}
		if !p.write(b) {
			break
		}
	}
	switch p.g.IntN(4) {
	case 0:
		p.write([]byte{0xe0, 0})
	case 1:
		_ = conn.(*net.TCPConn).CloseWrite()
	case 2:
		_ = conn.(*net.TCPConn).SetLinger(0)
	}
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	reading.Wait()
}

// read takes what the server sends and acknowledges it, mostly right.
func (p *player) read() {
	var buffer []byte
	chunk := make([]byte, 16<<10)
	honest := !p.acks.oneIn(4)
	for {
		n, err := p.conn.Read(chunk)
		if err != nil {
			return
		}
		buffer = append(buffer, chunk[:n]...)
		for {
			header, body, n, _, err := mqtt.Split(buffer, 1<<20)
			if err != nil {
				return
			}
			if n == 0 {
				break
			}
			p.answer(header, body, honest)
			buffer = buffer[n:]
		}
	}
}

func (p *player) answer(header byte, body []byte, honest bool) {
	typ, id := mqtt.Type(header>>4), uint16(0)
	switch {
	case typ == mqtt.PUBLISH && header&6 != 0 && len(body) >= 2:
		at := 2 + int(body[0])<<8 + int(body[1])
		if len(body) < at+2 {
			return
		}
		id = uint16(body[at])<<8 | uint16(body[at+1])
	case (typ == mqtt.PUBREC || typ == mqtt.PUBREL) && len(body) >= 2:
		id = uint16(body[0])<<8 | uint16(body[1])
	default:
		return
	}
	answer := mqtt.PUBACK
	switch {
	case typ == mqtt.PUBREC:
		answer = mqtt.PUBREL
	case typ == mqtt.PUBREL:
		answer = mqtt.PUBCOMP
	case header&4 != 0:
		answer = mqtt.PUBREC
	}
	if !honest {
		switch p.acks.IntN(6) {
		case 0:
			return
		case 1:
			answer = pick(p.acks, mqtt.PUBACK, mqtt.PUBREC, mqtt.PUBREL, mqtt.PUBCOMP)
		case 2:
			id++
		}
	}
	p.write(mqtt.AppendAck(nil, mqtt.Version(p.acks.version), answer, id, mqtt.Success, ""))
}
