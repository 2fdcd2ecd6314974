package session

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// OnDisk gives the number of the session on disk, 0 if it isn't there.
func (s *Session) OnDisk() (sid uint64) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.SID
}

// Identifiers of QoS 2 publishes whose PUBREL is awaited are charged to the pool of
// memory in steps, for the most that there have been: the map doesn't shrink before the
// client goes with none.
const (
	ReceivedMemory = 48
	receivedStep   = 16
)

// MayReceive says whether a QoS 2 publish with this identifier is inflight, and if not,
// whether there is memory for one.
func (s *Session) MayReceive(id uint16) (known, room bool) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if _, known = s.Received[id]; known || s.Ended || len(s.Received) < int(s.ReceivedRoom) {
		return known, true
	}
	if !s.Env.Memory.Take(memory.Sessions, receivedStep*ReceivedMemory) {
		return false, false
	}
	s.ReceivedRoom += receivedStep
	return false, true
}

// CreditReceived gives back what received is charged with; s.Mu is held.
func (s *Session) CreditReceived() {
	s.Env.Memory.Credit(memory.Sessions, int64(s.ReceivedRoom)*ReceivedMemory)
	s.ReceivedRoom = 0
}

// Receive notes a QoS 2 publish until its PUBREL.
func (s *Session) Receive(c *peer.Peer, id uint16) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Received == nil {
		s.Received = make(map[uint16]*peer.Peer)
	}
	s.Received[id] = c
	if len(s.Received) > int(s.ReceivedRoom) && !s.Ended { // read from disk
		s.Env.Memory.Charge(memory.Sessions, receivedStep*ReceivedMemory)
		s.ReceivedRoom += receivedStep
	}
}
