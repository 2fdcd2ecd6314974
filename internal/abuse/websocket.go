package abuse

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/coder/websocket"
)

// visitWebSocket connects over WebSocket and leaves.
func visitWebSocket(addr string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+addr+"/mqtt", &websocket.DialOptions{Subprotocols: []string{"mqtt"}})
	if err != nil {
		return err
	}
	k := newLink(websocket.NetConn(ctx, ws, websocket.MessageBinary))
	defer k.nc.Close()
	return k.connect("", 0, limit)
}

// upgrade is a handshake by hand: what follows on the link are raw frames.
func (t *Target) upgrade() (*link, error) {
	k, err := t.dial(t.attackedWS)
	if err != nil {
		return nil, err
	}
	request := fmt.Sprintf("GET /mqtt HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n", t.attackedWS)
	if err := k.write([]byte(request), attackLimit); err != nil {
		return nil, err
	}
	_ = k.nc.SetReadDeadline(time.Now().Add(attackLimit))
	for answered := ""; len(answered) < 4 || answered[len(answered)-4:] != "\r\n\r\n"; {
		b, err := k.in.ReadByte()
		if err != nil {
			return nil, err
		}
		if answered += string(b); len(answered) > 4<<10 {
			return nil, errors.New("no answer to the handshake")
		}
	}
	return k, nil
}

// The opcodes of RFC 6455, section 5.2.
const (
	opBinary = 0x2
	opPing   = 0x9
)

// frame is a frame of a client's, masked.
func frame(opcode byte, payload []byte) []byte {
	b := []byte{0x80 | opcode}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	default:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	}
	var mask [4]byte
	_, _ = rand.Read(mask[:])
	b = append(b, mask[:]...)
	for i, c := range payload {
		b = append(b, c^mask[i%4])
	}
	return b
}
