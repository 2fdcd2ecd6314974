// Package idle measures what connections cost that do nothing.
package idle

import (
	"context"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/report"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

// Work names what is measured.
const Work = "idle connections"

// Measure measures what connections that do nothing cost: memory each, and the
// processor time of a keep-alive.
func Measure(ctx context.Context, run *work.Run) error {
	n := 10_000
	if run.Quick {
		n = 1000
	}
	for _, name := range []string{servers.Holdfast, servers.BareLoop, servers.Mochi, servers.Mosquitto} {
		if err := ctx.Err(); err != nil {
			return err
		}
		t := run.Lab.Start(ctx, name)
		if t == nil {
			continue
		}
		err := idleAt(run, t, n)
		t.Stop()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func idleAt(run *work.Run, t *servers.Target, n int) error {
	scratch := make([]byte, 4096)
	connect := func(i int) (*client.Socket, error) {
		s, err := client.DialSocket(t.Addr)
		if err != nil {
			return nil, err
		}
		if err := s.Write(wire.AppendConnect(nil, fmt.Sprint("idle-", i), 0, 60)); err != nil {
			return s, err
		}
		return s, s.Await(scratch, 1)
	}
	first, err := connect(-1) // whatever a first connection sets up is not counted
	if err != nil {
		return err
	}
	defer first.Close()
	before := t.Procs.Memory("VmRSS")
	var all []*client.Socket
	defer func() { client.CloseSockets(all) }()
	for i := range n {
		s, err := connect(i)
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		all = append(all, s)
	}
	servers.Settle()
	perConnection := func() float64 { return float64(t.Procs.Memory("VmRSS")-before) / 1024 / float64(n) }
	run.Report.Measure(Work, t.Name, "connections", float64(n), "")
	run.Report.Measure(Work, t.Name, "memory each", perConnection(), "KiB")
	const pings = 3
	cpu := t.Procs.CPU()
	for range pings {
		for _, s := range all {
			if err := s.Write([]byte{wire.Pingreq, 0}); err != nil {
				return err
			}
		}
		for _, s := range all {
			if err := s.Await(scratch, 1); err != nil {
				return err
			}
		}
	}
	run.Report.Measure(Work, t.Name, "processor time of a keep-alive", report.Microseconds(t.Procs.CPU()-cpu)/float64(pings*n), "µs")
	run.Report.Measure(Work, t.Name, "memory each after keep-alives", perConnection(), "KiB")
	return nil
}
