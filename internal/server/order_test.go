package server

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// Clients that watch one key and change it, with other requests around theirs that wait
// for the same batch: on each connection the notification of a change precedes the reply
// to it, notifications come in the order of versions, no reply shows a value that was not
// notified, and none follows the answer to STOP (protocol, section 6).
func TestOrderOfRepliesAndNotifications(t *testing.T) {
	t.Parallel()
	s := start(t)
	var clients sync.WaitGroup
	for i := range 4 {
		w := &watchingWire{wire: dialWire(t, s, fmt.Sprint("client-", i), false), id: fmt.Sprint("client-", i)}
		clients.Go(func() {
			for round := range 100 {
				if !w.round(t, round) {
					return
				}
			}
		})
	}
	clients.Wait()
}

// watchingWire is a client of TestOrderOfRepliesAndNotifications.
type watchingWire struct {
	*wire
	id       string
	notified []string      // values, since the watch began
	last     hlc.Timestamp // version of the last notification
}

// round watches, changes the key, and stops.
func (w *watchingWire) round(t *testing.T, round int) (ok bool) {
	first, second := fmt.Sprintf("%s/%d/first", w.id, round), fmt.Sprintf("%s/%d/second", w.id, round)
	w.notified = nil
	var want []string
	var requests []byte
	add := func(expected string, args ...string) {
		want = append(want, expected)
		requests = request(requests, w.id, uint16(len(want)), stamp(), args...)
	}
	add("", "KEYNOTIFY", "shared")
	add("", "SET", w.id, "v")
	add(first, "SET", "shared", first)
	add("", "SET", w.id, "w")
	add("any", "GET", "shared")
	add(second, "SET", "shared", second)
	add("", "KEYNOTIFY", "shared", "STOP")
	w.acks = append(w.acks, requests...)
	w.send(w.acks)
	w.acks = w.acks[:0]
	for pubacks, replies := 0, 0; pubacks < len(want) || replies < len(want); {
		header, body := w.next()
		if mqtt.TypeOf(header) == mqtt.PUBACK {
			pubacks++
			continue
		}
		if err := w.publish.DecodeDelivery(mqtt.V5, header, body); err != nil {
			t.Error(err)
			return false
		}
		w.acks = mqtt.AppendAck(w.acks, mqtt.V5, mqtt.PUBACK, w.publish.PacketID, mqtt.Success, "")
		if bytes.HasPrefix(w.publish.Topic, []byte(protocol.NotifyPrefix)) {
			if replies == len(want) {
				t.Errorf("%s: a notification follows the answer to STOP", w.id)
			}
			w.noteNotification(t)
			continue
		}
		if payload := string(w.publish.Payload); strings.HasPrefix(payload, "-") {
			t.Errorf("%s: %s", w.id, payload)
			return false
		}
		switch value := want[replies]; value {
		case "":
		case "any":
			value = string(bytes.TrimSuffix(w.publish.Payload[bytes.IndexByte(w.publish.Payload, '\n')+1:], []byte("\r\n")))
			w.wantNotified(t, value, "GET shows")
		default:
			w.wantNotified(t, value, "the reply to SET is about")
		}
		replies++
	}
	return !t.Failed()
}

func (w *watchingWire) noteNotification(t *testing.T) {
	text, _ := mqtt.FindUserProp(w.publish.Props.Raw, protocol.TimeProperty)
	version, err := hlc.ParseBytes(text)
	if err != nil || version.Compare(w.last) <= 0 {
		t.Errorf("%s: the notification of version %s follows that of %s", w.id, version, w.last)
	}
	w.last = version
	parts := strings.Split(string(w.publish.Payload), "\r\n")
	w.notified = append(w.notified, parts[len(parts)-2])
}

func (w *watchingWire) wantNotified(t *testing.T, value, what string) {
	for _, v := range w.notified {
		if v == value {
			return
		}
	}
	t.Errorf("%s: %s %q, of which there was no notification", w.id, what, value)
}
