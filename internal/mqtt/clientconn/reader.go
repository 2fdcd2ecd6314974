package clientconn

import (
	"errors"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

var (
	errConnackTwice   = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a second CONNACK"}
	errAuth           = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "AUTH on a connection without an Authentication Method"}
	errAlias          = &mqtt.Error{Code: mqtt.TopicAliasInvalid, Reason: "a topic alias, although the CONNECT allowed none"}
	errQoS2           = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a message at QoS 2, although all subscriptions are at QoS 1 or 0"}
	errReceiveMaximum = &mqtt.Error{Code: mqtt.ReceiveMaximumExceeded, Reason: "more unacknowledged messages than the CONNECT's Receive Maximum"}
)

// run reads until the connection ends, and then ends all that belongs to it.
func (c *Conn) run() {
	err := c.read()
	c.pings.stop()
	var broken *mqtt.Error
	if errors.As(err, &broken) {
		d := &mqtt.Disconnect{Code: broken.Code, ReasonString: []byte(broken.Reason)}
		if !d.Code.FromClient() {
			d.Code = mqtt.ProtocolError
		}
		c.out.close(d)
		err = protocolError(broken)
	} else {
		_ = c.nc.Close() // ends a write that waits
		c.out.close(nil)
	}
	c.err = c.why(err)
	if kept := c.window.close(c.err); len(kept) > 0 {
		c.cfg.Sent.put(kept)
	}
	close(c.done)
}

// why chooses the cause of the end. read is that of the reader.
func (c *Conn) why(read error) error {
	var said *ReasonError
	var broken *mqtt.Error
	if errors.As(read, &said) || errors.As(read, &broken) {
		return read
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return c.failed
	}
	if err := c.out.cause(); err != nil {
		return err
	}
	return read
}

// read handles what comes until an error. The output is held back while there are packets
// to handle.
func (c *Conn) read() error {
	for {
		f, ok, err := c.in.Buffered()
		if ok {
			c.out.hold()
		}
		for ok && err == nil {
			if err = c.packet.Decode(mqtt.V5, f); err == nil {
				err = c.handle()
			}
			if err == nil {
				f, ok, err = c.in.Buffered()
			}
		}
		c.out.release()
		if err == nil {
			err = c.in.Fill()
		}
		if err != nil {
			return err
		}
		c.reads.Add(1)
	}
}

// handle handles c.packet.
func (c *Conn) handle() error {
	switch p := &c.packet; p.Type {
	case mqtt.PUBLISH:
		return c.published(&p.Publish)
	case mqtt.PUBACK, mqtt.PUBREC, mqtt.PUBCOMP:
		return c.acknowledged(p.Ack.PacketID, Outcome{Type: p.Type, Code: p.Ack.Code, Reason: p.Ack.ReasonString})
	case mqtt.SUBACK:
		return c.acknowledged(p.Suback.PacketID, Outcome{Type: p.Type, Codes: p.Suback.Codes, Reason: p.Suback.ReasonString})
	case mqtt.UNSUBACK:
		return c.acknowledged(p.Unsuback.PacketID, Outcome{Type: p.Type, Codes: p.Unsuback.Codes, Reason: p.Unsuback.ReasonString})
	case mqtt.PUBREL:
		return c.released(p.Ack.PacketID)
	case mqtt.DISCONNECT:
		return c.disconnected()
	case mqtt.CONNACK:
		return errConnackTwice
	case mqtt.AUTH:
		return errAuth
	}
	return nil // PINGRESP: Conn.reads has counted it
}

func (c *Conn) published(p *mqtt.Publish) error {
	switch {
	case p.Props.HasTopicAlias: // [MQTT-3.1.2-27]
		return errAlias
	case p.QoS == 0:
	case p.QoS == 2 && c.cfg.QoS2 == nil:
		return errQoS2
	case p.QoS == 2 && c.cfg.QoS2.has(p.PacketID): // received before [MQTT-4.3.3-10]
		c.acknowledge(mqtt.PUBREC, p.PacketID, mqtt.Success)
		return nil
	default:
		if c.receiving.Add(1) > c.receiveMaximum { // [MQTT-3.3.4-7]
			return errReceiveMaximum
		}
	}
	c.cfg.Received(p)
	return nil
}

func (c *Conn) acknowledged(packetID uint16, o Outcome) error {
	release, code, err := c.window.acknowledged(packetID, &o)
	if release {
		c.acknowledge(mqtt.PUBREL, packetID, code)
	}
	return err
}

// released handles a PUBREL. One of a message that was received over an earlier connection
// frees no slot of this one's Receive Maximum.
func (c *Conn) released(packetID uint16) error {
	code := mqtt.PacketIdentifierNotFound
	if c.cfg.QoS2 != nil && c.cfg.QoS2.remove(packetID) {
		code = mqtt.Success
		if c.receiving.Add(-1) < 0 {
			c.receiving.Add(1)
		}
	}
	c.acknowledge(mqtt.PUBCOMP, packetID, code)
	return nil
}

func (c *Conn) disconnected() error {
	d := &c.packet.Disconnect
	return &ReasonError{mqtt.DISCONNECT, d.Code, string(d.ReasonString), 0}
}
