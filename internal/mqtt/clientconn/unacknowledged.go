package clientconn

import (
	"context"
	"errors"
	"slices"
	"sort"
	"sync"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Unacknowledged has the messages that the client has sent with [Conn.SendKept] and the server
// has not acknowledged when a connection ends: the sender's part of an MQTT session. The next
// connection sends them again if the server has the session still, in their order, with DUP
// and with the packet identifiers that they had [MQTT-4.4.0-1]; a message at QoS 2 whose
// PUBREC has come is released again instead. Its zero value is ready. Its methods are safe
// for concurrent use.
type Unacknowledged struct {
	mu       sync.Mutex
	requests []request // under mu: in the order in which they were sent
}

// Drop tells each message that it is lost. The owner of the session calls it when there is
// no connection and will be none.
func (u *Unacknowledged) Drop() {
	for _, r := range u.take() {
		r.pending.Lost()
	}
}

func (u *Unacknowledged) take() []request {
	u.mu.Lock()
	defer u.mu.Unlock()
	requests := u.requests
	u.requests = nil
	return requests
}

func (u *Unacknowledged) put(requests []request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.requests = append(u.requests, requests...)
}

// publishKept is request for a message that outlives the connection. Its packet is kept as it
// was sent, since the caller may change what the message was made of once it has stopped
// waiting.
func (c *Conn) publishKept(id uint16, encode func(dst []byte, packetID uint16) []byte) error {
	kept := false
	err := c.out.append(c.maxPacket, func(dst []byte) []byte {
		before := len(dst)
		dst = encode(dst, id)
		// The window is open still: the output ends before it.
		c.window.keep(id, slices.Clone(dst[before:]))
		kept = true
		return dst
	})
	if err != nil && !c.window.leave(id) && kept {
		return nil // it goes on over the next connection
	}
	return err
}

// resume takes over what the connection before has left. It returns what is to be sent again.
func (c *Conn) resume(sessionPresent bool) []request {
	if c.cfg.Sent == nil {
		return nil
	}
	if !sessionPresent { // the server may have taken some of them, and does not know them any more
		c.cfg.Sent.Drop()
		return nil
	}
	return c.cfg.Sent.take()
}

// sendAgain sends messages of the connections before, as the server's Receive Maximum allows.
// New messages wait until it has returned: the order stays [MQTT-4.6.0-1].
func (c *Conn) sendAgain(requests []request) {
	defer close(c.resumed)
	for i := range requests {
		r := &requests[i]
		if !c.window.enterAgain(r.id) {
			continue
		}
		if c.out.waitRoom(context.Background()) != nil {
			return
		}
		err := c.out.append(c.maxPacket, func(dst []byte) []byte {
			if r.released {
				return mqtt.AppendAck(dst, mqtt.V5, mqtt.PUBREL, r.id, mqtt.Success, "")
			}
			before := len(dst)
			dst = append(dst, r.sent...)
			dst[before] |= dupBit
			return dst
		})
		if errors.Is(err, ErrTooLarge) && c.window.leave(r.id) { // the server takes less than before
			r.pending.Lost()
		}
	}
}

// dupBit is the DUP flag in the first byte of a PUBLISH.
const dupBit = 0x08

// inOrder returns the requests that outlive the connection, in the order in which they were
// sent first.
func inOrder(used map[uint16]request) []request {
	var kept []request
	for _, r := range used {
		if r.sent != nil {
			kept = append(kept, r)
		}
	}
	sort.Slice(kept, func(i, j int) bool { return kept[i].number < kept[j].number })
	return kept
}

// blameBound is how many connections the server may end perhaps because of a message, before the
// message is given up.
//
// A server ends the connection for a PUBLISH that it does not take, if there is no PUBACK that says
// so: one with more user properties than it allows, for example. Sent again over each connection,
// such a message would end all of them, and the messages behind it would never be sent. Which
// message it is, the DISCONNECT does not say; so those that were not acknowledged are given up
// together, and the caller of each learns that it may or may not have been published.
const blameBound = 3

// blame returns the DISCONNECT by which the server has ended a connection, if that may be because
// of a packet that it does not take.
func blame(why error) *ReasonError {
	var said *ReasonError
	if !errors.As(why, &said) || said.Packet != mqtt.DISCONNECT {
		return nil
	}
	switch said.Code {
	case mqtt.MalformedPacket, mqtt.ProtocolError, mqtt.ImplementationSpecificError, mqtt.TopicNameInvalid, mqtt.PacketTooLarge,
		mqtt.QuotaExceeded, mqtt.PayloadFormatInvalid, mqtt.RetainNotSupported, mqtt.QoSNotSupported:
		return said
	}
	return nil
}
