package record

import (
	"reflect"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
)

func exampleRecord() *Record {
	captured := []Capture{{"price", []byte("1.5"), Taken}, {"", []byte{}, Taken}, {"failed", []byte("why"), Failed}, {"ended", []byte{}, FailedTerminally}}
	return New(7, time.Unix(1, 2).UTC(), captured, DigestOf([]byte("payload")), []client.Message{{Topic: "a", Payload: []byte("b")}, {Topic: "c"}})
}

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	r := exampleRecord()
	got, err := Decode(r.Encode())
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("decoded %+v, %v\nwant    %+v", got, err, r)
	}
	for n := range r.Encode() {
		if _, err := Decode(r.Encode()[:n]); err == nil {
			t.Errorf("the first %d bytes pass for a record", n)
		}
	}
	if _, err := Decode(append(r.Encode(), 0)); err == nil {
		t.Error("a byte too many passes")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(exampleRecord().Encode())
	f.Add([]byte{Format, 0, 0, 255, 255, 255, 255, 15})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(r.Encode())
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%+v becomes %+v, %v", r, again, err)
		}
	})
}
