package mqtt

import "github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"

// Connect is a CONNECT packet. Its slices are views of the body it was decoded from.
type Connect struct {
	Version    Version
	Bridge     bool   // another broker connects, as Mosquitto's bridges say it before version 5: bit 7 of the level
	CleanStart bool   // Clean Session in 3.1.1
	KeepAlive  uint16 // seconds; 0: none
	ClientID   []byte // may be empty

	Username, Password       []byte
	HasUsername, HasPassword bool

	HasWill bool
	Will    Will

	SessionExpiry     uint32 // seconds, 0xFFFFFFFF: never; in 3.1.1 that, or 0 with Clean Session
	ReceiveMaximum    uint16 // Decode says 65535 if absent; AppendConnect leaves out 0 and 65535
	MaximumPacketSize uint32 // bytes; 0: none
	TopicAliasMaximum uint16

	RequestResponseInfo bool
	RequestProblemInfo  bool // true if absent: set it when you build a Connect, or servers will explain nothing

	AuthMethod, AuthData       []byte
	HasAuthMethod, HasAuthData bool

	Raw []byte // the property block

	Bounds Bounds
}

// Will is what a CONNECT asks the server to publish when the connection or session ends badly.
type Will struct {
	QoS            byte
	Retain         bool
	Topic, Payload []byte
	DelayInterval  uint32       // seconds
	Props          PublishProps // Raw is the will's property block
}

// The protocol names, and the bit of the protocol level by which a broker says that it connects as a bridge. The
// bit is in no standard; Mosquitto and others set it, before version 5.
const (
	nameV31   = "MQIsdp"
	nameV311  = "MQTT"
	bridgeBit = 0x80
)

const (
	noExpiry          = 0xFFFFFFFF
	maxReceiveMaximum = 65_535
)

// The bits of the connect flags (MQTT 5, section 3.1.2.3).
const (
	flagReserved   = 0x01
	flagCleanStart = 0x02
	flagWill       = 0x04
	flagWillQoS    = 0x18
	flagWillRetain = 0x20
	flagPassword   = 0x40
	flagUsername   = 0x80
)

// Decode decodes a CONNECT. It overwrites all of c but its Bounds. Two errors are the caller's to answer rather than to close
// on: UnsupportedProtocolVersion leaves the level that the client sent in c.Version, without the bridge bit if the
// rest is below 5, and ClientIdentifierNotValid comes from a 3.1.1 client without identifier that wants to keep
// its session [MQTT-3.1.3-8].
func (c *Connect) Decode(body []byte) error {
	return asError(c.decode(body))
}

func (c *Connect) decode(body []byte) *Error {
	ids := c.Will.Props.SubscriptionIDs
	*c = Connect{ReceiveMaximum: maxReceiveMaximum, RequestProblemInfo: true, Bounds: c.Bounds}
	c.Will.Props.SubscriptionIDs = ids[:0]

	flags, rest, err := c.decodeHeader(body)
	if err != nil {
		return err
	}
	userLeft := c.Bounds.userPropsLeft()
	if c.Version >= V5 {
		if c.Raw, rest, err = cutBlock(rest); err != nil {
			return err
		}
		if userLeft, err = c.decodeProps(userLeft); err != nil {
			return err
		}
	} else if !c.CleanStart {
		c.SessionExpiry = noExpiry
	}
	if rest, err = c.decodePayload(flags, rest, userLeft); err != nil {
		return err
	}
	if len(rest) > 0 {
		return errTrailing
	}
	if c.Version < V5 && len(c.ClientID) == 0 && !c.CleanStart {
		return errClientIDEmpty
	}
	return nil
}

// decodeHeader reads protocol name, level, flags and keep-alive.
func (c *Connect) decodeHeader(body []byte) (flags byte, rest []byte, err *Error) {
	name, rest, ok := wire.Binary(body)
	if !ok || len(rest) < 1 {
		return 0, nil, errShort
	}
	c.Version = Version(rest[0])
	if level := c.Version &^ bridgeBit; level < V5 {
		c.Bridge = c.Version != level
		c.Version = level
	}
	switch {
	case string(name) == nameV31:
		if c.Version != V31 {
			c.Version = min(c.Version, V311) // no client of that name understands more
			return 0, nil, errProtocolLevel
		}
	case string(name) != nameV311: // [MQTT-3.1.2-1]
		return 0, nil, errProtocolName
	case c.Version != V311 && c.Version != V5: // [MQTT-3.1.2-2]
		return 0, nil, errProtocolLevel
	}
	if len(rest) < 4 {
		return 0, nil, errShort
	}
	flags = rest[1]
	c.CleanStart = flags&flagCleanStart != 0
	c.HasWill = flags&flagWill != 0
	c.HasUsername = flags&flagUsername != 0
	c.HasPassword = flags&flagPassword != 0
	c.KeepAlive = uint16(rest[2])<<8 | uint16(rest[3])
	return flags, rest[4:], checkConnectFlags(flags, c.Version)
}

func checkConnectFlags(flags byte, v Version) *Error {
	switch {
	case flags&flagReserved != 0: // [MQTT-3.1.2-3]
		return errConnectFlag
	case flags&flagWill == 0 && flags&(flagWillQoS|flagWillRetain) != 0: // [MQTT-3.1.2-11], [MQTT-3.1.2-13]
		return errWillFlags
	case flags&flagWillQoS == flagWillQoS: // [MQTT-3.1.2-12]
		return errWillQoS3
	case v < V5 && flags&flagPassword != 0 && flags&flagUsername == 0: // MQTT 3.1.1 [MQTT-3.1.2-22]
		return errPasswordAlone
	}
	return nil
}

// decodeProps reads the property block. left is userLeft for the will.
func (c *Connect) decodeProps(userLeft int) (left int, err *Error) {
	r := propReader{rest: c.Raw, allowed: connectProps, userLeft: userLeft}
	for r.next() {
		switch r.id {
		case PropSessionExpiry:
			c.SessionExpiry = r.num
		case PropReceiveMaximum:
			c.ReceiveMaximum = uint16(r.num)
		case PropMaximumPacketSize:
			c.MaximumPacketSize = r.num
		case PropTopicAliasMaximum:
			c.TopicAliasMaximum = uint16(r.num)
		case PropRequestResponseInfo:
			c.RequestResponseInfo = r.num == 1
		case PropRequestProblemInfo:
			c.RequestProblemInfo = r.num == 1
		case PropAuthMethod:
			c.AuthMethod, c.HasAuthMethod = r.data, true
		case PropAuthData:
			c.AuthData, c.HasAuthData = r.data, true
		}
	}
	if r.err == nil && c.HasAuthData && !c.HasAuthMethod {
		return 0, errAuthDataAlone
	}
	return r.userLeft, r.err
}

// decodePayload reads what the flags announce, in the order of [MQTT-3.1.3-1].
func (c *Connect) decodePayload(flags byte, b []byte, userLeft int) (rest []byte, err *Error) {
	if c.ClientID, b, err = cutString(b); err != nil {
		return nil, err
	}
	if c.HasWill {
		c.Will.QoS = flags & flagWillQoS >> 3
		c.Will.Retain = flags&flagWillRetain != 0
		if b, err = c.Will.decode(c.Version, b, userLeft); err != nil {
			return nil, err
		}
	}
	if c.HasUsername {
		if c.Username, b, err = cutString(b); err != nil {
			return nil, err
		}
	}
	if c.HasPassword {
		var ok bool
		if c.Password, b, ok = wire.Binary(b); !ok {
			return nil, errShort
		}
	}
	return b, nil
}

func (w *Will) decode(v Version, b []byte, userLeft int) (rest []byte, err *Error) {
	if v >= V5 {
		var block []byte
		if block, b, err = cutBlock(b); err != nil {
			return nil, err
		}
		if err = w.Props.decode(block, willProps, &w.DelayInterval, userLeft); err != nil {
			return nil, err
		}
	}
	var ok bool
	if w.Topic, b, ok = wire.Binary(b); !ok {
		return nil, errShort
	}
	if len(w.Topic) == 0 { // [MQTT-4.7.3-1]
		return nil, errWillTopic
	}
	if err = checkTopicName(w.Topic); err != nil {
		return nil, err
	}
	if w.Payload, b, ok = wire.Binary(b); !ok {
		return nil, errShort
	}
	return b, nil
}

// AppendConnect appends c, in the version that it names.
func AppendConnect(dst []byte, c *Connect) []byte {
	dst = append(dst, CONNECT.header())
	dst, packet := wire.OpenLength(dst)
	name, level := nameV311, c.Version
	if c.Version == V31 {
		name = nameV31
	}
	if c.Bridge {
		level |= bridgeBit
	}
	dst = wire.AppendText(dst, name)
	dst = append(dst, byte(level), c.flags())
	dst = wire.AppendUint16(dst, c.KeepAlive)
	if c.Version >= V5 {
		var block int
		dst, block = wire.OpenLength(dst)
		dst = c.appendProps(dst)
		dst = wire.CloseLength(dst, block)
	}
	dst = wire.AppendText(dst, c.ClientID)
	if c.HasWill {
		dst = c.Will.append(dst, c.Version)
	}
	if c.HasUsername {
		dst = wire.AppendText(dst, c.Username)
	}
	if c.HasPassword {
		dst = wire.AppendText(dst, c.Password)
	}
	return wire.CloseLength(dst, packet)
}

func (c *Connect) flags() (flags byte) {
	if c.CleanStart {
		flags |= flagCleanStart
	}
	if c.HasWill {
		flags |= flagWill | c.Will.QoS<<3
		if c.Will.Retain {
			flags |= flagWillRetain
		}
	}
	if c.HasUsername {
		flags |= flagUsername
	}
	if c.HasPassword {
		flags |= flagPassword
	}
	return flags
}

// appendProps appends the properties that differ from their defaults, then the user properties of Raw.
func (c *Connect) appendProps(dst []byte) []byte {
	if c.SessionExpiry != 0 {
		dst = AppendUint32Prop(dst, PropSessionExpiry, c.SessionExpiry)
	}
	if c.ReceiveMaximum != 0 && c.ReceiveMaximum != maxReceiveMaximum {
		dst = AppendUint16Prop(dst, PropReceiveMaximum, c.ReceiveMaximum)
	}
	if c.MaximumPacketSize != 0 {
		dst = AppendUint32Prop(dst, PropMaximumPacketSize, c.MaximumPacketSize)
	}
	if c.TopicAliasMaximum != 0 {
		dst = AppendUint16Prop(dst, PropTopicAliasMaximum, c.TopicAliasMaximum)
	}
	if c.RequestResponseInfo {
		dst = appendBoolProp(dst, PropRequestResponseInfo, true)
	}
	if !c.RequestProblemInfo {
		dst = appendBoolProp(dst, PropRequestProblemInfo, false)
	}
	if c.HasAuthMethod {
		dst = AppendStringProp(dst, PropAuthMethod, c.AuthMethod)
	}
	if c.HasAuthData {
		dst = AppendStringProp(dst, PropAuthData, c.AuthData)
	}
	return appendUserProps(dst, c.Raw)
}

func (w *Will) append(dst []byte, v Version) []byte {
	if v >= V5 {
		var block int
		dst, block = wire.OpenLength(dst)
		if w.DelayInterval != 0 {
			dst = AppendUint32Prop(dst, PropWillDelayInterval, w.DelayInterval)
		}
		dst = w.Props.append(dst)
		dst = wire.CloseLength(dst, block)
	}
	dst = wire.AppendText(dst, w.Topic)
	return wire.AppendText(dst, w.Payload)
}
