package consistent

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	"holdfast/internal/topic"
)

// Codec makes bytes of values and values of bytes. Encoding the same value twice must
// give the same bytes. It is safe for concurrent use.
type Codec[T any] interface {
	Encode(T) ([]byte, error)
	Decode([]byte) (T, error)
}

// JSONCodec is the [Codec] that is used without another.
type JSONCodec[T any] struct{}

// Encode implements Codec.
func (JSONCodec[T]) Encode(v T) ([]byte, error) { return json.Marshal(v) }

// Decode implements Codec.
func (JSONCodec[T]) Decode(b []byte) (v T, err error) { return v, json.Unmarshal(b, &v) }

// HandlerOption configures one [Handle].
type HandlerOption func(*handlerOptions)

type handlerOptions struct {
	name           string
	key            any // func(M) string
	keyFromMessage func(Message) string
	messageID      func(Message) string
	stateCodec     any // Codec[S]
	messageCodec   any // Codec[M]
	version        uint32
	deadLetter     string
}

// Key makes the business key of a message: messages of one key change one state, one
// after the other; those of different keys know nothing of each other. Each handler
// needs this or [KeyFromMessage]. The function must give the same key for the same
// message; the empty string makes a dead letter.
func Key[M any](key func(M) string) HandlerOption {
	return func(o *handlerOptions) { o.key = key }
}

// KeyFromMessage makes the business key of the message as it came, for example of
// its topic.
func KeyFromMessage(key func(Message) string) HandlerOption {
	return func(o *handlerOptions) { o.keyFromMessage = key }
}

// HandlerName names a handler, instead of Options.Name. The state of key K is found in the
// store under "name/K". A name that changes is a new handler, with no state and no memory
// of messages. Handlers of the same name are one handler for several kinds of messages:
// they have the same state, and their filters have no topic in common.
func HandlerName(name string) HandlerOption {
	return func(o *handlerOptions) { o.name = name }
}

// MessageID finds the identity of messages that carry no CloudEvents properties. The
// empty string means that there is none.
func MessageID(id func(Message) string) HandlerOption {
	return func(o *handlerOptions) { o.messageID = id }
}

// StateCodec replaces JSON for the state. A state that is to be found by a later
// version of the program must still decode.
func StateCodec[S any](c Codec[S]) HandlerOption {
	return func(o *handlerOptions) { o.stateCodec = c }
}

// MessageCodec replaces JSON for the payload of the messages that come in.
func MessageCodec[M any](c Codec[M]) HandlerOption {
	return func(o *handlerOptions) { o.messageCodec = c }
}

// Version numbers the handler's code; a replay finds the number of the code that
// processed the message first in [Context.Version], and can behave as that did. The
// default is 0.
func Version(version uint32) HandlerOption {
	return func(o *handlerOptions) { o.version = version }
}

// DeadLetterTopic replaces Options.DeadLetterTopic for one handler.
func DeadLetterTopic(topic string) HandlerOption {
	return func(o *handlerOptions) { o.deadLetter = topic }
}

// handler is a registered handler without its types.
type handler struct {
	name, filter, deadLetter string
	version                  uint32
	state                    reflect.Type
	messageID                func(Message) string
	decode                   func(*Message) (any, error)
	key                      func(*Message, any) string
	// run decodes the state, handles, and encodes the new one.
	run func(c *Context, state []byte, m any) ([]byte, []Message, error)
}

// Handle registers a handler for the messages of a topic filter. The state that the
// handler gets is the zero value where the store has none; it is stored after every
// message. The error – a name or filter that is none, no key, a dead-letter topic that
// a handler would get its own dead letters from – is [Processor.Run]'s too, so a
// program can leave it to that. Handle must not be called after Run.
func Handle[S, M any](p *Processor, filter string, h func(c *Context, state S, message M) (S, []Message, error), opts ...HandlerOption) error {
	var o handlerOptions
	for _, opt := range opts {
		opt(&o)
	}
	registered, err := newHandler(p, filter, h, &o)
	if err == nil {
		err = p.register(registered)
	}
	if err != nil {
		err = fmt.Errorf("handler for %q: %w", filter, err)
		p.unregistered = append(p.unregistered, err)
	}
	return err
}

func newHandler[S, M any](p *Processor, filter string, h func(*Context, S, M) (S, []Message, error), o *handlerOptions) (*handler, error) {
	r := &handler{name: o.name, filter: filter, version: o.version, messageID: o.messageID, deadLetter: o.deadLetter, state: reflect.TypeFor[S]()}
	if r.name == "" {
		r.name = p.o.Name
	}
	if r.deadLetter == "" {
		r.deadLetter = p.o.DeadLetterTopic
	}
	var messages Codec[M] = JSONCodec[M]{}
	var states Codec[S] = JSONCodec[S]{}
	var ok bool
	if o.messageCodec != nil {
		if messages, ok = o.messageCodec.(Codec[M]); !ok {
			return nil, fmt.Errorf("MessageCodec is for another type than the handler's message: %T", o.messageCodec)
		}
	}
	if o.stateCodec != nil {
		if states, ok = o.stateCodec.(Codec[S]); !ok {
			return nil, fmt.Errorf("StateCodec is for another type than the handler's state: %T", o.stateCodec)
		}
	}
	switch key := o.key.(type) {
	case func(M) string:
		r.key = func(_ *Message, m any) string { return key(m.(M)) }
	case nil:
		if o.keyFromMessage == nil {
			return nil, errors.New("it needs a Key or KeyFromMessage option")
		}
		r.key = func(m *Message, _ any) string { return o.keyFromMessage(*m) }
	default:
		return nil, fmt.Errorf("Key is for another type than the handler's message: %T", o.key)
	}
	r.decode = func(m *Message) (any, error) {
		v, err := messages.Decode(m.Payload)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUndecodable, err)
		}
		return v, nil
	}
	r.run = func(c *Context, state []byte, m any) ([]byte, []Message, error) {
		var s S
		if state != nil {
			var err error
			if s, err = states.Decode(state); err != nil {
				return nil, nil, fmt.Errorf("%w: %w", ErrStateUndecodable, err)
			}
		}
		s, outputs, err := h(c, s, m.(M))
		if err != nil {
			return nil, nil, &handlerError{err}
		}
		state, err = states.Encode(s)
		if err != nil {
			return nil, nil, Terminal(fmt.Errorf("the state cannot be encoded: %w", err))
		}
		return state, outputs, nil
	}
	return r, r.check()
}

// check looks at what one handler can get wrong by itself.
func (h *handler) check() error {
	switch {
	case h.name == "" || strings.ContainsAny(h.name, "/\x00") || !utf8.ValidString(h.name):
		return fmt.Errorf("name %q: it begins the store's keys, so it must be UTF-8, not empty, without '/' and NUL", h.name)
	case !utf8.ValidString(h.filter) || !topic.ValidFilter(h.filter):
		return errors.New("that is not a topic filter")
	case strings.HasPrefix(h.filter, "$share/"):
		return errors.New("a shared subscription is asked for by Options.Share")
	case !utf8.ValidString(h.deadLetter) || !topic.ValidName([]byte(h.deadLetter)):
		return fmt.Errorf("dead-letter topic %q: that is not the name of a topic", h.deadLetter)
	}
	return nil
}

// guarded calls what the application has written and makes an error of its panic.
func guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}
