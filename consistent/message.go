package consistent

import (
	"context"
	"iter"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/commit"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/stores"
)

// Message is an MQTT application message, in or out.
type Message = client.Message

// UserProperties are what travels with a [Message], in order; a name may occur more than once.
type UserProperties = client.UserProperties

// UserProperty is a name and a value that travel with a [Message].
type UserProperty = client.UserProperty

// Delivery is a message that was received, and its acknowledgement.
type Delivery = client.Delivery

// Conn is what a [Processor] stands on: transactions and the three commands of the store
// (protocol, sections 12 and 8), and messages at QoS 1. [Dial] makes the real one; package
// consistenttest has one in memory. It is safe for concurrent use.
type Conn interface {
	// Load is [client.Client.Load].
	Load(ctx context.Context, key, messageID string) (client.LoadResult, error)
	// Store is [client.Client.Store]. After an error it may or may not have been executed.
	Store(ctx context.Context, r StoreRequest) (client.StoreResult, error)
	// Done is [client.Client.Done].
	Done(ctx context.Context, r DoneRequest) (remembered bool, err error)
	// Transact carries out a transaction, all of it or nothing (protocol, section 12). After an
	// error it may or may not have been carried out, unless the error says that the server has
	// refused it.
	Transact(ctx context.Context, r TxnRequest) (TxnResult, error)
	// Set sets a key, which expires after expiry.
	Set(ctx context.Context, key string, value []byte, expiry time.Duration) error
	// Usage counts the keys that begin with prefix, and the bytes of their values.
	Usage(ctx context.Context, prefix string) (keys int, bytes int64, err error)
	// Publish sends messages in this order and returns nil when all of them are
	// acknowledged, as [client.Session.Publish].
	Publish(ctx context.Context, messages ...Message) error
	// Subscribe is [client.Session.Subscribe].
	Subscribe(ctx context.Context, filters ...string) error
	// Messages is [client.Session.Messages].
	Messages(ctx context.Context) iter.Seq2[Delivery, error]
	// ClockAhead is how far this machine's clock is ahead of the server's, as far as is
	// known.
	ClockAhead() time.Duration
	// SessionExpiry is for how long the server keeps messages that were not acknowledged
	// once the connection is lost, and delivers them again.
	SessionExpiry() time.Duration
	// MaxPacketSize is the largest packet, in bytes, that the server takes; 0: any.
	MaxPacketSize() uint32
}

// TogetherConn is a [Conn] whose Transact takes requests for several keys ([TxnRequest], Also), and
// those that do what STORE and DONE do (Open and Done), so that messages of different keys share
// transactions on both paths.
type TogetherConn interface {
	Conn
	// TransactsTogether tells whether it does so.
	TransactsTogether() bool
}

// TxnRequest asks for what messages of one key lead to, or of several.
type TxnRequest = commit.Request

// TxnMessage is a message that a transaction remembers.
type TxnMessage = commit.Message

// TxnResult is the outcome of a transaction.
type TxnResult = commit.Result

// TxnDone is a message whose outputs are published, as part of a TxnRequest.
type TxnDone = commit.Done

// StoreRequest asks for a STORE.
type StoreRequest = stores.StoreRequest

// DoneRequest asks for a DONE.
type DoneRequest = stores.DoneRequest
