// Package decoded keeps states of handlers as values beside their bytes, so that the next message
// of a key need not decode them. It does so only where that makes no difference to the handler:
// the value is what the codec would make of the bytes, and shares no memory with what the handler
// has. It knows no handler.
package decoded

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// Codec is consistent.Codec.
type Codec[S any] interface {
	Encode(S) ([]byte, error)
	Decode([]byte) (S, error)
}

// CodecOf is the codec that an option was given for a handler's state or message (what), or if it
// is nil another one. Its error says that the codec is of another type.
func CodecOf[T any](given any, option, what string, otherwise Codec[T]) (Codec[T], error) {
	if given == nil {
		return otherwise, nil
	}
	if c, is := given.(Codec[T]); is {
		return c, nil
	}
	return nil, fmt.Errorf("%s(%T): the handler's %s is a %v: give a Codec of that", option, given, what, reflect.TypeFor[T]())
}

// Value is a state as its codec decodes it. The zero value is none.
type Value struct {
	state any   // *S, which is not changed
	Bytes int64 // what it takes in memory
}

// States encodes and decodes the states of one handler. It is safe for concurrent use.
type States[S any] struct {
	codec Codec[S]
	plain bool    // values are kept
	texts [][]int // where S has strings
}

// maxSize is how large the type of a state is whose values are kept, in bytes: they are copied
// for each message.
const maxSize = 4 << 10

// New makes States with a codec, which isJSON says is encoding/json. Values are kept of types that
// have nothing but numbers, truth values, strings, arrays and structs of them, with exported fields
// under names of their own: then a copy is independent of the original, and JSON gives back what
// it gets. Others are decoded each time.
func New[S any](codec Codec[S], isJSON bool) *States[S] {
	s := &States[S]{codec: codec}
	t := reflect.TypeFor[S]()
	s.plain = isJSON && t.Size() <= maxSize && s.isPlain(t, nil)
	return s
}

// Decode returns the state that b encodes, or the zero value if b is nil. v is what Encode has
// returned beside b, of any States, or none.
func (s *States[S]) Decode(b []byte, v Value) (state S, err error) {
	if p, is := v.state.(*S); is && s.plain {
		return *p, nil
	}
	if b == nil {
		return state, nil
	}
	return s.codec.Decode(b)
}

// Encode encodes a state. It returns the value to keep, if there is one.
func (s *States[S]) Encode(state S) (b []byte, v Value, err error) {
	if b, err = s.codec.Encode(state); err != nil || !s.plain {
		return b, Value{}, err
	}
	kept := new(S)
	*kept = state
	v = Value{kept, int64(reflect.TypeFor[S]().Size())}
	if len(s.texts) > 0 {
		all := reflect.ValueOf(kept).Elem()
		for _, path := range s.texts {
			text := all.FieldByIndex(path)
			if !utf8.ValidString(text.String()) {
				return b, Value{}, nil // JSON changes it
			}
			text.SetString(strings.Clone(text.String())) // it may be a part of something large
			v.Bytes += int64(text.Len())
		}
	}
	return b, v, nil
}

var encoders = []reflect.Type{
	reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
}

// isPlain tells whether values of a type are kept, which is at a path in S, and notes its strings.
func (s *States[S]) isPlain(t reflect.Type, path []int) bool {
	own := func(i reflect.Type) bool { return t.Implements(i) || reflect.PointerTo(t).Implements(i) }
	if slices.ContainsFunc(encoders, own) || t == reflect.TypeFor[json.Number]() {
		return false
	}
	switch t.Kind() {
	case reflect.Bool, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	case reflect.String:
		s.texts = append(s.texts, slices.Clone(path))
		return len(path) > 0
	case reflect.Array:
		before := len(s.texts)
		return s.isPlain(t.Elem(), path) && len(s.texts) == before
	case reflect.Struct:
		names := make(map[string]bool)
		for i := range t.NumField() {
			f := t.Field(i)
			name := nameOf(&f)
			if name == "" || names[name] || !s.isPlain(f.Type, append(path, i)) {
				return false
			}
			names[name] = true
		}
		return true
	}
	return false
}

// nameOf is the name of a field in JSON, in lower case; "" if it is not stored as it is.
func nameOf(f *reflect.StructField) string {
	tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch f.Type.Kind() {
	case reflect.Float32, reflect.Float64, reflect.Struct, reflect.Array: // negative zero is empty
		if options != "" {
			return ""
		}
	}
	name := tag
	if name == "" {
		name = f.Name
	}
	other := func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}
	if !f.IsExported() || f.Anonymous || options != "" && options != "omitempty" || strings.ContainsFunc(name, other) {
		return ""
	}
	return strings.ToLower(name)
}
