package operate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sort"

	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
)

// holder is what the sessions of one principal have together.
type holder struct {
	Principal     string
	Sessions      int
	Connected     int
	Subscriptions int
	Queued        int   // messages waiting
	QueuedBytes   int64 // their bytes
}

// holders are those of the sessions that were added; the zero value has none.
type holders map[string]*holder

func (hs *holders) add(s *broker.SessionInfo) {
	name := s.Owner
	if name == "" {
		name = hostOf(s.Address)
	}
	if *hs == nil {
		*hs = holders{}
	}
	h := (*hs)[name]
	if h == nil {
		h = &holder{Principal: name}
		(*hs)[name] = h
	}
	h.Sessions++
	if s.Connected {
		h.Connected++
	}
	h.Subscriptions += s.Subscriptions
	h.Queued += s.Queued
	h.QueuedBytes += s.QueuedBytes
}

// hostOf is an address without its port; - if there is none.
func hostOf(address string) string {
	if address == "" {
		return "-"
	}
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// most lists them, the one with most sessions first.
func (hs *holders) most() []*holder {
	list := make([]*holder, 0, len(*hs))
	for _, h := range *hs {
		list = append(list, h)
	}
	sort.Slice(list, func(i, j int) bool {
		x, y := list[i], list[j]
		return cmp.Or(cmp.Compare(y.Sessions, x.Sessions), cmp.Compare(y.Connected, x.Connected), cmp.Compare(x.Principal, y.Principal)) < 0
	})
	return list
}

func (l *sessionList) printHolder(w io.Writer, h *holder) error {
	if l.json {
		return json.NewEncoder(w).Encode(h)
	}
	_, err := fmt.Fprintf(w, "%-32s %7d %7d %7d %7d %10d\n", output.Word(h.Principal), h.Sessions, h.Connected, h.Subscriptions, h.Queued, h.QueuedBytes)
	return err
}
