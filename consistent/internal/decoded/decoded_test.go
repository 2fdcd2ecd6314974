package decoded

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

type viaJSON[S any] struct{}

func (viaJSON[S]) Encode(v S) ([]byte, error)       { return json.Marshal(v) }
func (viaJSON[S]) Decode(b []byte) (v S, err error) { return v, json.Unmarshal(b, &v) }
func isKept[S any]() bool                           { return New[S](viaJSON[S]{}, true).plain }
func keeps[S any](s *States[S], state S) (Value, bool) {
	_, v, err := s.Encode(state)
	return v, err == nil && v.state != nil
}

type place struct {
	X, Y  float64
	Label string `json:"label,omitempty"`
}

type game struct {
	Hits   int `json:"hits"`
	Shots  uint8
	Over   bool `json:",omitempty"`
	Player string
	Target place
	Marks  [3]int16
}

type loud string

func (l loud) MarshalText() ([]byte, error) { return []byte(strings.ToUpper(string(l))), nil }

// Values are kept of types that JSON gives back as they are, and of no others.
func TestTypesThatAreKept(t *testing.T) {
	t.Parallel()
	for name, kept := range map[string]bool{
		"game": isKept[game](), "int": isKept[int](), "empty": isKept[struct{}](), "array": isKept[[4]byte](),
	} {
		if !kept {
			t.Errorf("%s is decoded each time", name)
		}
	}
	for name, kept := range map[string]bool{
		"slice": isKept[struct{ A []int }](), "map": isKept[map[string]int](), "pointer": isKept[*game](), "interface": isKept[any](), "string": isKept[string](),
		"time": isKept[struct{ At time.Time }](), "number": isKept[struct{ N json.Number }](), "text": isKept[struct{ L loud }](),
		"not exported": isKept[struct{ a int }](), "left out": isKept[struct {
			A int `json:"-"`
		}](), "as a string": isKept[struct {
			A int `json:",string"`
		}](), "negative zero": isKept[struct {
			A float64 `json:",omitempty"`
		}](), "embedded": isKept[struct{ place }](), "one name": isKept[struct {
			A int `json:"n"`
			B int `json:"N"`
		}](), "another name": isKept[struct {
			A int `json:"ä"`
		}](), "strings in an array": isKept[struct{ A [2]string }](), "large": isKept[[maxSize + 1]byte](),
	} {
		if kept {
			t.Errorf("%s is kept", name)
		}
	}
	if New[game](viaJSON[game]{}, false).plain {
		t.Error("a value of another codec is kept")
	}
}

// What is kept is what JSON makes of the bytes.
func TestKeptValuesAreThoseOfJSON(t *testing.T) {
	t.Parallel()
	s := New[game](viaJSON[game]{}, true)
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.Make[game]().Draw(t, "state")
		if rapid.Bool().Draw(t, "invalid") {
			before.Target.Label += "\xff"
		}
		b, v, err := s.Encode(before)
		if err != nil {
			return // a number that JSON does not have: nothing is kept
		}
		want, err := s.Decode(b, Value{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Decode(b, v); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	})
}

// A value belongs to its type, and to states that are kept.
func TestValuesOfOthers(t *testing.T) {
	t.Parallel()
	v, ok := keeps(New[game](viaJSON[game]{}, true), game{Hits: 7, Player: "ann"})
	if !ok || v.Bytes != int64(reflect.TypeFor[game]().Size())+3 {
		t.Fatalf("%+v", v)
	}
	if got, err := New[place](viaJSON[place]{}, true).Decode([]byte(`{"X":1}`), v); err != nil || got != (place{X: 1}) {
		t.Errorf("another type: %+v, %v", got, err)
	}
	if got, err := New[game](viaJSON[game]{}, false).Decode([]byte(`{"hits":8}`), v); err != nil || got.Hits != 8 {
		t.Errorf("another codec: %+v, %v", got, err)
	}
	if got, err := New[game](viaJSON[game]{}, true).Decode(nil, Value{}); err != nil || got != (game{}) {
		t.Errorf("no state: %+v, %v", got, err)
	}
}
