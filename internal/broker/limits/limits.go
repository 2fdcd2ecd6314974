// Package limits is what bounds the broker's clients, with the defaults.
package limits

import (
	"math"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// QueueFull says what happens to a publish that finds the queue of a matching
// session at its bound.
type QueueFull string

const (
	// EndSession ends the session whose queue is full: its client learns of it
	// by Session Present 0, publishers never notice. The default.
	EndSession QueueFull = "end-session"
	// Reject refuses the publish (0x97) before any subscriber got it.
	Reject QueueFull = "reject"
	// DropOldest drops the oldest message that hasn't been sent.
	DropOldest QueueFull = "drop-oldest"
)

// QueueFulls are the settings as rows of sessions number them; 0: none.
var QueueFulls = []QueueFull{"", EndSession, Reject, DropOldest}

// Strategy says which member of a shared subscription gets a message.
type Strategy string

// The strategies. See package share for what they do with members that are away or full.
const (
	RoundRobin Strategy = "round-robin" // the members in turn. The default
	Sticky     Strategy = "sticky"      // one member all of them, as long as it is connected
	HashClient Strategy = "hash-client" // the same member those of one publisher, by its client ID
	HashTopic  Strategy = "hash-topic"  // the same member those of one topic
)

// Strategies are all of them.
var Strategies = []Strategy{RoundRobin, Sticky, HashClient, HashTopic}

// StrategyOf is that of a group, by its name.
func (l *Limits) StrategyOf(group string) Strategy {
	if s, is := l.SharedStrategies[group]; is {
		return s
	}
	return l.SharedStrategy
}

// DefaultMaxConnections is that of Limits.MaxConnections.
const DefaultMaxConnections = 100_000

// Limits bounds what clients can make the broker hold. A zero field means its
// default. Everything that MQTT lets a server announce is announced in CONNACK.
type Limits struct {
	MaxConnections          int                 // network connections at once; default 100,000. Beyond, the principal with most of them loses one, or CONNACK 0x97
	LoopbackConnections     int                 // connections of clients on this machine that are accepted however many others there are; default 16, but at most a sixteenth of MaxConnections
	ReservedConnections     int                 // connections beyond MaxConnections, and sessions beyond MaxSessions, for principals whose quota has the reserve; default 16, but at most a sixteenth of MaxConnections
	MaxSessions             int                 // sessions, connected or away; default 200,000. Beyond: CONNACK 0x97
	MaxSessionExpiry        time.Duration       // longest Session Expiry Interval granted, whole seconds; default 7 days
	MaxPacketSize           int                 // bytes of one packet from a client; default 4 MiB + 1 KiB. Beyond: DISCONNECT 0x95
	MaxConnectSize          int                 // bytes of a CONNECT, whose sender is not authenticated yet; default 64 KiB, at most MaxPacketSize. Beyond, the connection is closed
	MaxKeepAlive            time.Duration       // longest keep-alive granted, whole seconds; default 0: whatever the client asks
	ConnectTimeout          time.Duration       // from accepting a connection to its CONNECT; default 10 s
	TakeoverWait            time.Duration       // how long a connection may work on what its client had sent when the client connects again; default 1 s
	PacketTimeout           time.Duration       // from the first byte of a packet to its last; default 2 minutes. Beyond: DISCONNECT 0x8D
	ReceiveMaximum          int                 // inflight publishes (QoS 1 and 2) from one client; default 1,024. Beyond, its connection isn't read until there is room; DISCONNECT 0x93 for four times as many that wait for the client's PUBREL
	TopicAliasMaximum       int                 // topic aliases per connection and direction; default 32. Beyond: DISCONNECT 0x94
	MaxInflight             int                 // inflight deliveries (QoS 1 and 2) to one client, whatever its Receive Maximum, and one more for a response if that is larger; default 1,024
	MaxInflightV3           int                 // the same for clients before MQTT 5, which can't say how many they take; default 20
	MaxQueued               int                 // messages waiting for one session, inflight ones included, or in the backlog of one shared subscription; default: no bound but that of bytes. Beyond: see QueueFull
	MaxQueuedBytes          int64               // their bytes on disk, 64 for each message included; default a quarter of MaxTotalQueuedBytes
	MaxTotalQueued          int                 // messages waiting for all sessions together; default: no bound but that of bytes. Near it: PUBACK 0x97 for messages to sessions that hold more than their share
	MaxTotalQueuedBytes     int64               // their bytes on disk, those of a message in several queues counted once; default half of what the disk has free at the start
	MaxQueuedMemory         int64               // bytes waiting in memory only for one client: messages of a session that ends with its connection, responses and notifications, 320 for each included; default 64 MiB. Beyond: as QueueFull says, or DISCONNECT 0x97
	MaxNotifications        int                 // handler notifications waiting for one connection; default 10,000. Beyond: DISCONNECT 0x97
	MaxSubscriptions        int                 // subscriptions per session; default 10,000. Beyond: SUBACK 0x97; DISCONNECT 0x97 for a SUBSCRIBE or UNSUBSCRIBE of more than twice as many filters
	MaxUserProperties       int                 // user properties of one packet, its will's included; default 1,000. Beyond: CONNACK or DISCONNECT 0x97
	MaxFilterBytes          int                 // bytes of a session's filters; default 1 MiB. Beyond: SUBACK 0x97
	MaxAliasBytes           int                 // bytes of the topics of a connection's aliases, each way; default 64 KiB. Beyond: DISCONNECT 0x97, and no alias is given
	MaxSessionsPerPrincipal int                 // sessions of one principal, or of one client address as far as clients have not proven who they are, connected or away, unless its quota says otherwise; default half of MaxSessions, but at least 1,000. Beyond, its oldest that is away with nothing queued ends; CONNACK 0x97 if there is none
	MaxTopicLevels          int                 // levels in a topic name or filter; default 128. Beyond: 0x90 or 0x8F
	MaxClientID             int                 // bytes of a client identifier; default 1,024. Beyond: CONNACK 0x85
	MaxRetained             int                 // retained messages; default 1,000,000. Beyond: delivered, but not retained, PUBACK 0x97
	MaxRetainedBytes        int64               // their bytes; default 1 GiB
	MaxClientRetained       int                 // retained messages that one principal has published last, unless its quota says otherwise; default 0: no bound but MaxRetained. Beyond: delivered, but not retained, PUBACK 0x97
	MaxClientRetainedBytes  int64               // their bytes; default 0: no bound but MaxRetainedBytes
	MaxTxnDeliveries        int                 // deliveries of one transaction's messages: one for each message and session or shared subscription that gets it; default 100,000. Beyond: refused
	MaxDelay                time.Duration       // how far off a timer may be; default 366 days. Beyond: PUBACK 0x83
	MaxTimers               int                 // messages that are kept to be published later; default 10,000,000. Beyond: PUBACK 0x97
	MaxTimerBytes           int64               // their bytes on disk; default 4 GiB
	MaxClientTimers         int                 // those of one principal; default 0: no bound but MaxTimers. Beyond: PUBACK 0x97
	MaxClientTimerBytes     int64               // their bytes on disk; default 0: no bound but MaxTimerBytes
	OutputBuffer            int                 // bytes written to one connection that its socket hasn't taken; default 64 KiB. QoS 0 beyond is dropped, other messages wait in the session's queue
	QueueFull               QueueFull           // default EndSession
	SharedStrategy          Strategy            // which member of a shared subscription gets a message; default RoundRobin
	SharedStrategies        map[string]Strategy // by the name of the group, instead of SharedStrategy; not changed
	KeepQueueFull           bool                // sessions can't choose for themselves: a CONNECT that does is refused (0x87)
}

// Default are the limits of a broker that is given none.
func Default() Limits { return Limits{}.WithDefaults() }

// WithDefaults puts its default in place of each zero field.
func (l Limits) WithDefaults() Limits {
	setDefault(&l.MaxConnections, DefaultMaxConnections)
	setDefault(&l.LoopbackConnections, min(16, l.MaxConnections/16))
	setDefault(&l.ReservedConnections, min(16, l.MaxConnections/16))
	setDefault(&l.MaxSessions, 200_000)
	setDefault(&l.MaxSessionExpiry, 7*24*time.Hour)
	setDefault(&l.MaxPacketSize, 4<<20+1<<10)
	setDefault(&l.MaxConnectSize, 64<<10)
	setDefault(&l.ConnectTimeout, 10*time.Second)
	setDefault(&l.TakeoverWait, time.Second)
	setDefault(&l.PacketTimeout, 2*time.Minute)
	setDefault(&l.ReceiveMaximum, 1024)
	setDefault(&l.TopicAliasMaximum, 32)
	setDefault(&l.MaxInflight, 1024)
	setDefault(&l.MaxInflightV3, 20)
	setDefault(&l.MaxQueued, math.MaxInt)
	setDefault(&l.MaxTotalQueued, math.MaxInt)
	setDefault(&l.MaxQueuedMemory, 64<<20)
	setDefault(&l.MaxNotifications, 10_000)
	setDefault(&l.MaxSubscriptions, 10_000)
	setDefault(&l.MaxUserProperties, 1000)
	setDefault(&l.MaxFilterBytes, 1<<20)
	setDefault(&l.MaxAliasBytes, 64<<10)
	setDefault(&l.MaxSessionsPerPrincipal, max(1000, l.MaxSessions/2))
	setDefault(&l.MaxTopicLevels, 128)
	setDefault(&l.MaxClientID, 1024)
	setDefault(&l.MaxRetained, 1_000_000)
	setDefault(&l.MaxRetainedBytes, 1<<30)
	setDefault(&l.MaxTxnDeliveries, 100_000)
	setDefault(&l.MaxDelay, 366*24*time.Hour)
	setDefault(&l.MaxTimers, 10_000_000)
	setDefault(&l.MaxTimerBytes, 4<<30)
	setDefault(&l.OutputBuffer, 64<<10)
	setDefault(&l.QueueFull, EndSession)
	setDefault(&l.SharedStrategy, RoundRobin)
	return l
}

// Packet are the bounds that mqtt refuses in one packet while it decodes it.
//
// A SUBSCRIBE of more filters than a session may have is answered with a code for each
// of them [MQTT-3.8.4-6], as long as that is in proportion. One of twice as many isn't
// meant to succeed, and is refused before anything is done for it: each filter takes 4
// bytes of the packet, and 32 of memory and 1 of SUBACK.
func (l *Limits) Packet() mqtt.Bounds {
	return mqtt.Bounds{UserProps: l.MaxUserProperties, Filters: filterSlack * l.MaxSubscriptions}
}

const filterSlack = 2

// GrantExpiry bounds a Session Expiry Interval, in seconds.
func (l *Limits) GrantExpiry(asked uint32) uint32 {
	return min(asked, uint32(min(l.MaxSessionExpiry/time.Second, math.MaxUint32)))
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// QueueFullProperty is the user property by which a CONNECT chooses what happens
// when the session's queue is full.
const QueueFullProperty = "holdfast-queue-full"

// AskedQueueFull gives what a CONNECT chooses, as QueueFulls numbers it. ok is false
// if there is no such choice.
func AskedQueueFull(props []byte) (asked byte, ok bool) {
	value, found := mqtt.FindUserProp(props, QueueFullProperty)
	if !found {
		return 0, true
	}
	i := slices.Index(QueueFulls, QueueFull(value))
	return byte(max(i, 0)), i > 0
}
