package crashtest

import (
	"fmt"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/history"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/messages"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/store"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/timers"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/transfers"
	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Summary is what a run has done and found. Violations are the promises broken that
// aren't counted in Messages.
type Summary struct {
	harness.Summary
	Rounds int `json:"rounds"`

	// Kills are counted by what the broker was doing. Kills of an idle broker end a
	// settlement, and are not among the rounds.
	Kills struct {
		Sending  int `json:"while_sending"`
		Recovery int `json:"during_recovery"`
		Resume   int `json:"during_resume"`
		Idle     int `json:"while_idle"`
	} `json:"kills"`

	Cluster *ClusterCounts `json:"cluster,omitempty"` // instead of Kills

	Messages MessageCounts `json:"messages"`
	Store    StoreCounts   `json:"store"`
	Sessions SessionCounts `json:"sessions"`

	Processors store.ProcessorCounts `json:"processors"`
	Transfers  transfers.Counts      `json:"transfers"`
	Timers     timers.Counts         `json:"timers"`

	// Examples are some of the faults counted in Messages, in words.
	Examples []string `json:"examples,omitempty"`
}

// MessageCounts counts messages; from Delivered on, each once for each subscriber.
type MessageCounts struct {
	Acknowledged        int `json:"acknowledged"`
	Delivered           int `json:"delivered"`
	Lost                int `json:"lost"`
	OutOfOrder          int `json:"out_of_order"`
	DuplicatesQoS2      int `json:"duplicates_qos2"`
	DuplicatesQoS1      int `json:"duplicates_qos1_allowed"`
	RedeliveredUnmarked int `json:"redelivered_without_dup"`
	OverReceiveMaximum  int `json:"over_receive_maximum"`
	IdentifiersReused   int `json:"identifiers_reused_too_early"`
	SessionsLost        int `json:"sessions_lost"`
	Retained            int `json:"retained_acknowledged"`
	RetainedLost        int `json:"retained_lost"`
	Wills               int `json:"wills_set_free"`
}

func (m *MessageCounts) add(f *messages.Faults) {
	m.Delivered += f.Delivered
	m.Lost += f.Lost
	m.OutOfOrder += f.OutOfOrder
	m.DuplicatesQoS2 += f.Duplicates2
	m.DuplicatesQoS1 += f.Duplicates
	m.RedeliveredUnmarked += f.WithoutDup
	m.OverReceiveMaximum += f.OverReceiving
	m.IdentifiersReused += f.IDReused
	m.SessionsLost += f.SessionsLost
}

func (m *MessageCounts) faults() int {
	return m.Lost + m.OutOfOrder + m.DuplicatesQoS2 + m.RedeliveredUnmarked + m.OverReceiveMaximum + m.IdentifiersReused + m.SessionsLost + m.RetainedLost
}

// StoreCounts counts requests to the state store.
type StoreCounts struct {
	Answered  int `json:"answered"`
	Unknown   int `json:"unknown_at_a_kill"` // the reply was lost with the broker
	Txns      int `json:"transactions"`      // that were done
	Keys      int `json:"keys_checked"`
	Unchecked int `json:"keys_unchecked"` // too hard to search in the time given
	Notified  int `json:"notifications"`
	Locks     int `json:"locks_taken"`
	Archived  int `json:"keys_archived"`
}

func (s *StoreCounts) add(ops []history.Operation, v history.Verdict, notified, locks int) {
	for _, op := range ops {
		if op.Fate == history.Answered {
			s.Answered++
			if op.Kind == statestore.Transacted && op.Count == statestore.Committed {
				s.Txns++
			}
		} else {
			s.Unknown++
		}
	}
	s.Keys += v.Keys
	s.Unchecked += v.Unchecked
	s.Notified += notified
	s.Locks += locks
}

// SessionCounts counts what roamers did.
type SessionCounts struct {
	Resumed int `json:"resumed"`
	Checks  int `json:"subscriptions_checked"`
}

// Failed says whether the broker broke a promise.
func (s *Summary) Failed() bool {
	return s.Summary.Failed() || s.Messages.faults() > 0 || s.Store.Unchecked > 0
}

// progress is the part of the summary that is known while the run goes on.
func (s *Summary) progress() string {
	if s.Cluster != nil {
		return fmt.Sprintf("%s: %d faults in %.0f s: %v; %s", s.Head(), s.Rounds, s.Seconds, s.Cluster, s.Broken())
	}
	return fmt.Sprintf("%s: %d kills in %.0f s (%d while sending, %d during recovery, %d during resume), and %d while idle; %s",
		s.Head(), s.Rounds, s.Seconds, s.Kills.Sending, s.Kills.Recovery, s.Kills.Resume, s.Kills.Idle, s.Broken())
}

// String is the summary for people.
func (s *Summary) String() string {
	var b strings.Builder
	b.WriteString(s.progress())
	if m := s.Messages; m.Acknowledged > 0 {
		fmt.Fprintf(&b, "\n  messages: %d acknowledged, %d delivered to subscribers, %d lost, %d out of order, %d duplicates at QoS 2 (%d at QoS 1), "+
			"%d redelivered without DUP, %d over Receive Maximum, %d identifiers reused too early, %d sessions lost; %d retained, %d lost; %d wills",
			m.Acknowledged, m.Delivered, m.Lost, m.OutOfOrder, m.DuplicatesQoS2, m.DuplicatesQoS1,
			m.RedeliveredUnmarked, m.OverReceiveMaximum, m.IdentifiersReused, m.SessionsLost, m.Retained, m.RetainedLost, m.Wills)
	}
	if c := s.Store; c.Answered > 0 {
		fmt.Fprintf(&b, "\n  state store: %d requests answered (%d of them transactions that were done), %d open at a kill, histories of %d keys checked (%d too hard), %d notifications, %d locks taken, %d keys archived",
			c.Answered, c.Txns, c.Unknown, c.Keys, c.Unchecked, c.Notified, c.Locks, c.Archived)
	}
	if c := s.Processors; c.Loads > 0 {
		fmt.Fprintf(&b, "\n  processors: %d messages looked up, %d committed, %d conflicts, %d done", c.Loads, c.Commits, c.Conflicts, c.Done)
	}
	if c := s.Transfers; c.Done > 0 {
		fmt.Fprintf(&b, "\n  transfers: %d done, %d open at a kill, %d of them done", c.Done, c.Unknown, c.Took)
	}
	if c := s.Timers; c.Set > 0 {
		fmt.Fprintf(&b, "\n  timers: %d set, %d cancelled, %d came, %d requests open at a kill", c.Set, c.Cancelled, c.Came, c.Unknown)
	}
	if c := s.Sessions; c.Resumed > 0 {
		fmt.Fprintf(&b, "\n  sessions: %d resumed, %d subscriptions checked", c.Resumed, c.Checks)
	}
	b.WriteString(s.List())
	for _, e := range s.Examples {
		fmt.Fprintf(&b, "\n  for example: %s", e)
	}
	return b.String()
}
