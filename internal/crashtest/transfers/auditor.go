package transfers

import (
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Auditor receives the receipts.
type Auditor struct {
	books   *Books
	session bool // it has one at the broker
}

// NewAuditor makes the auditor of some books.
func NewAuditor(b *Books) *Auditor { return &Auditor{books: b} }

// Live implements lives.Actor.
func (a *Auditor) Live(l *lives.Life) error {
	if err := a.audit(l); err != nil {
		return l.Ended("the auditor", err)
	}
	return nil
}

// between is how often the auditor looks whether all is settled.
const between = 20 * time.Millisecond

func (a *Auditor) audit(l *lives.Life) error {
	k, ack, err := lives.Dial(l, mqtt.Connect{ClientID: []byte("auditor"), SessionExpiry: lives.SessionExpiry, KeepAlive: 60})
	if err != nil {
		return err
	}
	defer k.Close()
	l.Arrivals.Count()
	if a.session && !ack.SessionPresent {
		return fmt.Errorf("%w: its session is gone", lives.ErrBroken)
	}
	handle := func(p lives.Packet) error { return a.handle(k, p) }
	if !a.session {
		code, err := k.Subscribe(receipts, 1, handle)
		if err != nil || code != mqtt.GrantedQoS1 {
			return fmt.Errorf("%w: SUBACK %v (%w)", lives.ErrBroken, code, err)
		}
		a.session = true
	}
	for !a.over(l) {
		if err := k.Flush(); err != nil {
			return err
		}
		p, any, err := k.ReadFor(between)
		if err != nil {
			return err
		}
		if any {
			if err := handle(p); err != nil {
				return err
			}
		}
	}
	return k.Disconnect(mqtt.Disconnect{})
}

// over says whether the run settles, and all receipts have come.
func (a *Auditor) over(l *lives.Life) bool {
	if !l.Settle {
		return false
	}
	select {
	case <-a.books.settled:
		return a.books.missing() == 0
	default:
		return false
	}
}

func (a *Auditor) handle(k *lives.Link, p lives.Packet) error {
	var m mqtt.Publish
	if p.Type != mqtt.PUBLISH || m.DecodeDelivery(mqtt.V5, p.Header, p.Body) != nil {
		return fmt.Errorf("%w: unexpected %v", lives.ErrBroken, p.Type)
	}
	k.Ack(mqtt.PUBACK, m.PacketID, mqtt.Success)
	return a.books.receive(string(m.Payload))
}
