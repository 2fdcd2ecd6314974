package main

import (
	"context"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

const idleWork = "idle connections"

// idle measures what connections that do nothing cost: memory each, and the
// processor time of a keep-alive.
func (b *bench) idle(ctx context.Context) error {
	n := 10_000
	if b.quick {
		n = 1000
	}
	for _, name := range []string{holdfast, bareLoop, mochi, mosquitto} {
		if err := ctx.Err(); err != nil {
			return err
		}
		t := b.lab.start(ctx, name)
		if t == nil {
			continue
		}
		err := b.idleAt(t, n)
		t.stop()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (b *bench) idleAt(t *target, n int) error {
	scratch := make([]byte, 4096)
	connect := func(i int) (*socket, error) {
		s, err := dialSocket(t.addr)
		if err != nil {
			return nil, err
		}
		if err := s.write(wire.AppendConnect(nil, fmt.Sprint("idle-", i), 0, 60)); err != nil {
			return s, err
		}
		return s, s.await(scratch, 1)
	}
	first, err := connect(-1) // whatever a first connection sets up is not counted
	if err != nil {
		return err
	}
	defer first.close()
	before := t.procs.memory("VmRSS")
	var all []*socket
	defer func() { closeSockets(all) }()
	for i := range n {
		s, err := connect(i)
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		all = append(all, s)
	}
	settle()
	perConnection := func() float64 { return float64(t.procs.memory("VmRSS")-before) / 1024 / float64(n) }
	b.report.measure(idleWork, t.name, "connections", float64(n), "")
	b.report.measure(idleWork, t.name, "memory each", perConnection(), "KiB")
	const pings = 3
	cpu := t.procs.cpu()
	for range pings {
		for _, s := range all {
			if err := s.write([]byte{wire.Pingreq, 0}); err != nil {
				return err
			}
		}
		for _, s := range all {
			if err := s.await(scratch, 1); err != nil {
				return err
			}
		}
	}
	b.report.measure(idleWork, t.name, "processor time of a keep-alive", microseconds(t.procs.cpu()-cpu)/float64(pings*n), "µs")
	b.report.measure(idleWork, t.name, "memory each after keep-alives", perConnection(), "KiB")
	return nil
}
