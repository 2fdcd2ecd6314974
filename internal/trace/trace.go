package trace

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/glob"
)

// Bounds.
const (
	MaxTraces  = 4              // at once
	MaxRate    = 10_000         // lines a second of one trace
	MaxPayload = 256            // bytes that are shown of a payload
	MaxFor     = 24 * time.Hour // of one trace
	waiting    = 512            // lines of one trace that its reader has not taken
)

// Filter says what a trace shows. One of Client and Key is set. With Key it shows commands
// of the store, of Client if that is set, too; without it the packets of Client.
type Filter struct {
	Client  string // client ID
	Key     string // pattern of keys, as SCAN has them, matched byte by byte
	Rate    int    // lines a second, 1 to MaxRate
	Payload int    // bytes of payloads and values that are shown, 0 to MaxPayload
}

func (f *Filter) check() error {
	switch {
	case f.Client == "" && f.Key == "":
		return errors.New("name a client or a pattern of keys")
	case f.Rate < 1 || f.Rate > MaxRate:
		return fmt.Errorf("the lines a second must be 1 to %d", MaxRate)
	case f.Payload < 0 || f.Payload > MaxPayload:
		return fmt.Errorf("the bytes of payloads must be 0 to %d", MaxPayload)
	}
	return nil
}

// ErrTooMany: MaxTraces run already.
var ErrTooMany = fmt.Errorf("%d traces run already, which is as many as may", MaxTraces)

// Tracer has the traces that run. A nil Tracer has none. Its methods are safe for concurrent
// use, and never wait.
type Tracer struct {
	packets  atomic.Pointer[Traces] // of packets; nil: none
	commands atomic.Pointer[Traces] // of commands on keys; nil: none
	running  atomic.Int32
}

// Traces are those that run at a moment; nil: none.
type Traces []*Trace

// Packets returns the traces that show packets.
func (t *Tracer) Packets() Traces {
	if t == nil {
		return nil
	}
	if p := t.packets.Load(); p != nil {
		return *p
	}
	return nil
}

// Commands returns the traces that show commands on keys.
func (t *Tracer) Commands() Traces {
	if t == nil {
		return nil
	}
	if p := t.commands.Load(); p != nil {
		return *p
	}
	return nil
}

// Start begins a trace, which the caller ends by Trace.End. The error is ErrTooMany, or says
// what is wrong with the filter.
func (t *Tracer) Start(f Filter) (*Trace, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	one := &Trace{tracer: t, filter: f, lines: make(chan string, waiting), of: &t.packets}
	if f.Key != "" {
		compiled, err := glob.CompileBytes([]byte(f.Key))
		if err != nil {
			return nil, fmt.Errorf("the pattern %q: %w", f.Key, err)
		}
		one.glob, one.of = compiled, &t.commands
	}
	if t.running.Add(1) > MaxTraces {
		t.running.Add(-1)
		return nil, ErrTooMany
	}
	change(one.of, func(now Traces) Traces { return append(now, one) })
	return one, nil
}

// change replaces the traces by what f makes of a copy of them.
func change(of *atomic.Pointer[Traces], f func(Traces) Traces) {
	for {
		before := of.Load()
		var next Traces
		if before != nil {
			next = append(next, *before...)
		}
		var after *Traces
		if next = f(next); len(next) > 0 {
			after = &next
		}
		if of.CompareAndSwap(before, after) {
			return
		}
	}
}

// Trace is what one operator looks at.
type Trace struct {
	tracer *Tracer
	of     *atomic.Pointer[Traces]
	filter Filter
	glob   glob.Glob
	lines  chan string

	seen    atomic.Int64  // packets or commands that the filter matches
	dropped atomic.Int64  // those of seen without a line
	window  atomic.Uint64 // the second on the Unix clock << 16 | lines in it
	ended   atomic.Bool
}

// Lines are the lines, without line feeds.
func (t *Trace) Lines() <-chan string { return t.lines }

// Seen returns how many packets or commands the filter has matched, and how many of them have
// no line: there were more than Filter.Rate in a second, or the reader of Lines did not keep up.
func (t *Trace) Seen() (seen, dropped int64) { return t.seen.Load(), t.dropped.Load() }

// End ends the trace. Packets that are being handled may still give it lines.
func (t *Trace) End() {
	if t.ended.Swap(true) {
		return
	}
	change(t.of, func(now Traces) (left Traces) {
		for _, other := range now {
			if other != t {
				left = append(left, other)
			}
		}
		return left
	})
	t.tracer.running.Add(-1)
}

// admit counts a packet or a command, and says whether it may have a line.
func (t *Trace) admit(now time.Time) bool {
	t.seen.Add(1)
	second := uint64(now.Unix())
	for {
		before := t.window.Load()
		next := second<<16 | 1
		if before>>16 == second {
			if int(before&0xffff) >= t.filter.Rate {
				t.dropped.Add(1)
				return false
			}
			next = before + 1
		}
		if t.window.CompareAndSwap(before, next) {
			return true
		}
	}
}

// give hands a line to the reader, as far as it may be long.
func (t *Trace) give(line []byte) {
	if len(line) > maxLine {
		line = append(line[:maxLine], "…"...)
	}
	select {
	case t.lines <- string(line):
	default:
		t.dropped.Add(1)
	}
}

// Packet is one packet as a trace is given it. Its bytes are views that are valid during the
// call.
type Packet struct {
	Client    string // client ID; empty: a CONNECT has it
	Version   mqtt.Version
	Out       bool   // to the client
	Bytes     []byte // from the fixed header on, as many as there are at hand
	Elsewhere []byte // what of the payload follows Bytes, or a first part of it
	// Topic returns that of a PUBLISH which has only an alias of it; nil: not known.
	Topic func(alias uint16) string
}

// Packet shows a packet to the traces of its client.
func (ts Traces) Packet(p *Packet) {
	client := p.Client
	if client == "" {
		client = connectingClient(p.Bytes)
	}
	for _, t := range ts {
		if now := time.Now(); t.filter.Client == client && t.admit(now) {
			t.give(appendPacket(nil, now, client, p, t.filter.Payload))
		}
	}
}

// Command is one command of the store, or one operation of a transaction, as a trace is given
// it. Its bytes are views that are valid during the call.
type Command struct {
	Client  string
	Verb    string
	Key     []byte
	Outcome string
	Fault   string // why it was refused; empty: it was not
	Version []byte // of the reply; empty: it has none
	Value   []byte // that the command writes; nil: none
}

// Command shows a command to the traces of its key.
func (ts Traces) Command(c *Command) {
	for _, t := range ts {
		if t.filter.Client != "" && t.filter.Client != c.Client || !t.glob.Match(c.Key) {
			continue
		}
		if now := time.Now(); t.admit(now) {
			t.give(appendCommand(nil, now, c, t.filter.Payload))
		}
	}
}
