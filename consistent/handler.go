package consistent

import (
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/consistent/internal/decoded"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
)

// HandlerFunc handles a message: it returns the next state, and the messages to send.
// On the state-based path ([Replay]) it must be deterministic (see the package comment). The state is the
// zero value where the store has none. After an error nothing is stored and sent.
type HandlerFunc[S, M any] func(c *Context, state S, message M) (S, []Message, error)

type handlerOptions struct {
	name         string
	messageID    func(*Message) string
	stateCodec   any // Codec[S]
	messageCodec any // Codec[M]
	version      uint32
	deadLetter   string
	replay       bool
}

type handlerFunc func(*handlerOptions)

func (f handlerFunc) applyHandler(o *handlerOptions) { f(o) }

// WithName names a handler; the default is the processor's name. The state of key K is
// found in the store under "name/K", behind the namespace of [WithNamespace]. A name that changes is a new handler, with no state
// and no memory of messages. Handlers of the same name are one handler for several kinds
// of messages: they share the state, and their filters must not match a common topic.
func WithName(name string) HandlerOption {
	return handlerFunc(func(o *handlerOptions) { o.name = name })
}

// WithMessageID finds the identity of messages that carry no CloudEvents properties. The
// empty string means that there is none. The function must not change the message.
func WithMessageID(id func(*Message) string) HandlerOption {
	return handlerFunc(func(o *handlerOptions) { o.messageID = id })
}

// WithStateCodec replaces JSON for the state. S must be the handler's; [Handle] returns an
// error otherwise. A state that is to be found by a later version of the program must
// still decode.
func WithStateCodec[S any](c Codec[S]) HandlerOption {
	return handlerFunc(func(o *handlerOptions) { o.stateCodec = c })
}

// WithMessageCodec replaces JSON for the payload of the messages that come in. M must be
// the handler's; [Handle] returns an error otherwise.
func WithMessageCodec[M any](c Codec[M]) HandlerOption {
	return handlerFunc(func(o *handlerOptions) { o.messageCodec = c })
}

// WithVersion numbers the handler's code; a replay finds the number of the code that
// processed the message first in [Context.Version], and can behave as that did. The
// default is 0.
func WithVersion(version uint32) HandlerOption {
	return handlerFunc(func(o *handlerOptions) { o.version = version })
}

// Replay has messages processed on the state-based path, those of one handler, or given to [New],
// of all: LOAD, the handler, STORE, then publishing the outputs through [Conn.Publish], then DONE. A duplicate whose outputs may
// not all be out is handled again, on the state of the first time, and publishes the same again;
// so the handler must be deterministic (see the package comment). It is for outputs that leave
// the broker, and for servers without transactions. A handler may change its path at any time.
func Replay() ReplayOption { return replayOption{} }

// ReplayOption is an option of a processor, or of one handler: see [Replay].
type ReplayOption interface {
	Option
	HandlerOption
}

type replayOption struct{}

func (replayOption) applyProcessor(o *options)      { o.replay = true }
func (replayOption) applyHandler(o *handlerOptions) { o.replay = true }

// handler is a registered handler without its types.
type handler struct {
	name, filter, deadLetter string
	qualified                string // the name, behind the namespace if there is one
	version                  uint32
	replay                   bool
	state                    reflect.Type
	messageID                func(*Message) string
	decode                   func(*Message) (any, error)
	key                      func(*Message, any) string
	alone                    atomic.Bool // its messages are processed one by one: see errAlone
	// run decodes the state, handles, and encodes the new one.
	run func(c *Context, state []byte, m any) ([]byte, []Message, error)
}

// Handle registers a handler for the messages of a topic filter.
//
// key makes the business key of a message: messages of one key change one state, one
// after the other; messages of different keys are independent. It must give the same key
// for the same message. A message with the empty key becomes a dead letter.
//
// The error is about an invalid name or filter, or a dead-letter topic that matches a
// handler's filter. [Processor.Run] returns it as well, so a program need not check it
// here. Handle must not be called after Run.
func Handle[S, M any](p *Processor, filter string, key func(M) string, h HandlerFunc[S, M], opts ...HandlerOption) error {
	if key == nil {
		return p.add(nil, filter, errNoKeyFunction)
	}
	return handle(p, filter, func(_ *Message, m any) string { return key(m.(M)) }, h, opts)
}

// HandleByMessage is [Handle] with a key that is made of the message as it came, for
// example of its topic. The function must not change the message.
func HandleByMessage[S, M any](p *Processor, filter string, key func(*Message) string, h HandlerFunc[S, M], opts ...HandlerOption) error {
	if key == nil {
		return p.add(nil, filter, errNoKeyFunction)
	}
	return handle(p, filter, func(m *Message, _ any) string { return key(m) }, h, opts)
}

var errNoKeyFunction = errors.New("the key function is nil: give one that makes the business key of a message")

func handle[S, M any](p *Processor, filter string, key func(*Message, any) string, h HandlerFunc[S, M], opts []HandlerOption) error {
	var o handlerOptions
	for _, opt := range opts {
		opt.applyHandler(&o)
	}
	registered, err := newHandler(p, filter, key, h, &o)
	return p.add(registered, filter, err)
}

func newHandler[S, M any](p *Processor, filter string, key func(*Message, any) string, h HandlerFunc[S, M], o *handlerOptions) (*handler, error) {
	r := &handler{name: o.name, filter: filter, key: key, version: o.version, replay: o.replay || p.o.replay, messageID: o.messageID, deadLetter: o.deadLetter, state: reflect.TypeFor[S]()}
	if r.name == "" {
		r.name = p.o.name
	}
	r.qualified = p.o.qualified(r.name)
	if r.deadLetter == "" {
		r.deadLetter = p.o.deadLetter
	}
	if h == nil {
		return nil, errors.New("the handler function is nil")
	}
	messages, err := decoded.CodecOf(o.messageCodec, "WithMessageCodec", "message", JSONCodec[M]{})
	if err != nil {
		return nil, err
	}
	states, err := decoded.CodecOf(o.stateCodec, "WithStateCodec", "state", JSONCodec[S]{})
	if err != nil {
		return nil, err
	}
	r.decode = func(m *Message) (any, error) {
		v, err := messages.Decode(m.Payload)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUndecodable, err)
		}
		return v, nil
	}
	_, isJSON := states.(JSONCodec[S])
	kept := decoded.New(states, isJSON)
	r.run = func(c *Context, state []byte, m any) ([]byte, []Message, error) {
		s, err := kept.Decode(state, c.decoded)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrStateUndecodable, err)
		}
		s, outputs, err := h(c, s, m.(M))
		if err != nil {
			return nil, nil, &handlerError{err}
		}
		if state, c.decoded, err = kept.Encode(s); err != nil {
			return nil, nil, Terminal(fmt.Errorf("the state cannot be encoded: %w", err))
		}
		return state, outputs, nil
	}
	return r, event.CheckHandler(r.name, r.filter, r.deadLetter)
}

// guarded calls a function of the application's and makes an error of its panic.
func guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}
