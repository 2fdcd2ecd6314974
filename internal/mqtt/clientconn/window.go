package clientconn

import (
	"context"
	"errors"
	"sync"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Pending is what waits for the acknowledgement of a packet. Exactly one of its methods is
// called, once, and must not block. Acknowledged is called by the goroutine that reads the
// connection.
type Pending interface {
	// Acknowledged gets the outcome: PUBACK at QoS 1, PUBCOMP or a PUBREC with an error at
	// QoS 2, SUBACK, UNSUBACK.
	Acknowledged(Outcome)
	// Lost says that the connection has ended before; if messages outlive it (Config.Sent),
	// that the session has.
	Lost()
}

// Outcome is what an acknowledgement says. Its slices are views.
type Outcome struct {
	Type   mqtt.Type
	Code   mqtt.ReasonCode   // of PUBACK, PUBREC or PUBCOMP
	Codes  []mqtt.ReasonCode // of SUBACK or UNSUBACK: one for each filter
	Reason []byte            // the Reason String
}

// Err is nil, or a [*ReasonError] for the first code that says that the operation failed.
func (o *Outcome) Err() error {
	if o.Code.Failed() {
		return &ReasonError{o.Type, o.Code, string(o.Reason), 0}
	}
	for i, code := range o.Codes {
		if code.Failed() {
			return &ReasonError{o.Type, code, string(o.Reason), i}
		}
	}
	return nil
}

// window has the packet identifiers in use, and the send quota [MQTT-4.9.0-1]. A slot of
// the quota is free again with the last acknowledgement of a message, whether or not the
// caller still waits for it.
type window struct {
	quota chan struct{} // one element per slot in use; made by open
	lost  chan struct{} // closed by close

	mu     sync.Mutex
	next   uint16             // under mu: the packet identifier given out last
	number uint64             // under mu: of the request that was admitted last
	used   map[uint16]request // under mu; nil before open and after close
}

// request is a packet that is not acknowledged yet.
type request struct {
	id       uint16
	number   uint64 // counts the requests of the window, so that their order is known
	pending  Pending
	packet   mqtt.Type // PUBLISH, SUBSCRIBE or UNSUBSCRIBE
	qos      byte      // of a PUBLISH
	released bool      // PUBREL has been sent
	filters  int       // of a SUBSCRIBE or UNSUBSCRIBE
	sent     []byte    // the packet of a PUBLISH that outlives the connection, once it was sent
	kept     bool      // it outlives the connection
	waits    bool      // it was sent over an earlier connection, and has no slot of this one yet
	blamed   int       // connections that the server has ended perhaps because of it
}

var (
	errAckType    = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "an acknowledgement is not of the kind of the packet that has its identifier"}
	errAckFilters = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "an acknowledgement has not as many reason codes as the packet had topic filters"}
	errNoIDs      = errors.New("all packet identifiers are in use")
)

func (w *window) init() { w.lost = make(chan struct{}) }

// open begins, with the server's Receive Maximum. Messages of earlier connections have their
// packet identifiers from the start, and enter again.
func (w *window) open(receiveMaximum uint16, again []request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.quota = make(chan struct{}, receiveMaximum)
	w.used = make(map[uint16]request)
	for _, r := range again {
		w.number++
		r.number, r.waits = w.number, true
		w.used[r.id] = r
	}
}

// enterAgain waits for a slot for a message of an earlier connection. It is false if the
// connection has ended, or the message is not under way any more.
func (w *window) enterAgain(packetID uint16) bool {
	select {
	case w.quota <- struct{}{}:
	case <-w.lost:
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r, known := w.used[packetID]
	if !known {
		<-w.quota
		return false
	}
	r.waits = false
	w.used[packetID] = r
	return true
}

// keep notes the packet of a message that outlives the connection.
func (w *window) keep(packetID uint16, packet []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.used[packetID]
	r.sent = packet
	w.used[packetID] = r
}

// enter waits for a slot, if the packet needs one, and returns its identifier.
func (w *window) enter(ctx context.Context, r request) (packetID uint16, err error) {
	if r.packet == mqtt.PUBLISH {
		select {
		case w.quota <- struct{}{}:
		default:
			select {
			case w.quota <- struct{}{}:
			case <-w.lost:
				return 0, ErrEnded
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
	}
	packetID, err = w.admit(r)
	if err != nil && r.packet == mqtt.PUBLISH {
		<-w.quota
	}
	return packetID, err
}

func (w *window) admit(r request) (packetID uint16, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.used == nil {
		return 0, ErrEnded
	}
	for range 65_535 {
		if w.next++; w.next == 0 { // 0 is none [MQTT-2.2.1-3]
			w.next = 1
		}
		if _, used := w.used[w.next]; !used {
			w.number++
			r.id, r.number = w.next, w.number
			w.used[w.next] = r
			return w.next, nil
		}
	}
	return 0, errNoIDs
}

// leave takes a packet back that was not sent. It is false if the window is closed: its
// Pending has been told that it is lost, or the packet outlives the connection.
func (w *window) leave(packetID uint16) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, known := w.used[packetID]
	w.forget(packetID, r)
	return known
}

// forget frees an identifier and its slot. The caller holds mu.
func (w *window) forget(packetID uint16, r request) {
	delete(w.used, packetID)
	if r.packet == mqtt.PUBLISH && !r.waits {
		<-w.quota
	}
}

// acknowledged handles a PUBACK, PUBREC, PUBCOMP, SUBACK or UNSUBACK. With release the
// answer to it is PUBREL, with the code. An acknowledgement whose identifier is not in use is
// ignored, but for the answer.
func (w *window) acknowledged(packetID uint16, o *Outcome) (release bool, code mqtt.ReasonCode, err error) {
	w.mu.Lock()
	r, known := w.used[packetID]
	switch {
	case !known:
		w.mu.Unlock()
		return o.Type == mqtt.PUBREC && !o.Code.Failed(), mqtt.PacketIdentifierNotFound, nil
	case !r.answeredBy(o.Type):
		w.mu.Unlock()
		return false, 0, errAckType
	case len(o.Codes) != r.filters:
		w.mu.Unlock()
		return false, 0, errAckFilters
	case o.Type == mqtt.PUBREC && !o.Code.Failed():
		r.released = true
		w.used[packetID] = r
		w.mu.Unlock()
		return true, mqtt.Success, nil
	}
	w.forget(packetID, r)
	w.mu.Unlock()
	r.pending.Acknowledged(*o)
	return false, 0, nil
}

// answeredBy reports whether an acknowledgement of type t answers the packet.
func (r *request) answeredBy(t mqtt.Type) bool {
	switch t {
	case mqtt.PUBACK:
		return r.packet == mqtt.PUBLISH && r.qos == 1
	case mqtt.PUBREC:
		return r.packet == mqtt.PUBLISH && r.qos == 2
	case mqtt.PUBCOMP:
		return r.packet == mqtt.PUBLISH && r.qos == 2 && r.released
	case mqtt.SUBACK:
		return r.packet == mqtt.SUBSCRIBE
	default:
		return r.packet == mqtt.UNSUBSCRIBE
	}
}

// close tells all that wait that the connection has ended, but for messages that outlive it,
// which it returns. why is why it has ended.
func (w *window) close(why error) (kept []request) {
	w.mu.Lock()
	used := w.used
	w.used = nil
	w.mu.Unlock()
	close(w.lost)
	said := blame(why)
	for id, r := range used {
		switch {
		case !r.kept: // one that is kept and not sent: its caller notices
			r.pending.Lost()
		case said != nil && r.sent != nil && !r.waits:
			if r.blamed++; r.blamed == blameBound {
				delete(used, id)
				r.pending.Acknowledged(Outcome{Type: said.Packet, Code: said.Code, Reason: []byte(said.Reason)})
				continue
			}
			used[id] = r
		}
	}
	return inOrder(used)
}
