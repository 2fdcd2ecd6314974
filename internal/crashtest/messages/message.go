// Package messages has the actors of a crash test that publish and receive messages:
// publishers (publisher.go), subscribers (subscriber.go), the members of shared
// subscriptions and clients with wills (shared.go), and publishers of retained messages
// (retainer.go). Any MQTT 5 broker will do.
package messages

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
)

// message names one application message: the sequence number seq of its publisher.
type message struct {
	publisher int
	seq       uint64 // from 1
}

func (m message) String() string {
	return fmt.Sprintf("message %d of publisher %d", m.seq, m.publisher)
}

// messageHead is the length of what a payload begins with: publisher and sequence
// number, then the checksum of the whole.
const messageHead = 4 + 8 + 4

// payload is the message with so many bytes of padding.
func (m message) payload(rng *rand.Rand, padding int) []byte {
	b := make([]byte, messageHead, messageHead+padding)
	binary.BigEndian.PutUint32(b, uint32(m.publisher))
	binary.BigEndian.PutUint64(b[4:], m.seq)
	for len(b) < cap(b) {
		b = append(b, byte(rng.Uint32()))
	}
	binary.BigEndian.PutUint32(b[12:], checksum(b))
	return b
}

func checksum(b []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(b[:12]), crc32.IEEETable, b[messageHead:])
}

func parseMessage(b []byte) (message, error) {
	if len(b) < messageHead || binary.BigEndian.Uint32(b[12:]) != checksum(b) {
		return message{}, fmt.Errorf("%w: a payload of %d bytes came that no publisher sent", lives.ErrBroken, len(b))
	}
	return message{publisher: int(binary.BigEndian.Uint32(b)), seq: binary.BigEndian.Uint64(b[4:])}, nil
}

// messageTopic is where a publisher publishes.
func messageTopic(publisher int) string { return fmt.Sprintf("crashtest/messages/%d", publisher) }

const messageFilter = "crashtest/messages/+"
