package requests

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/load"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/servers"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/work"
	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

// TLSWork names the GETs that are compared over TLS.
func TLSWork(s load.Shape) string { return fmt.Sprint("GET over TLS ", s) }

// OverTLS compares GET over TLS with a bare loop over TLS, and both with the same over
// TCP; and what idle connections take.
func OverTLS(ctx context.Context, run *work.Run) error {
	var targets []*servers.Target
	for _, name := range []string{servers.HoldfastTLS, servers.BareTLS, servers.Holdfast, servers.BareLoop} {
		if t := run.Lab.Start(ctx, name); t != nil {
			defer t.Stop()
			targets = append(targets, t)
		}
	}
	keys := load.KeyNames(load.KeyCount)
	for _, t := range targets {
		if err := load.Preload(t, keys, strings.Repeat("v", 64), 1, 50); err != nil {
			return fmt.Errorf("%s: setting the keys: %w", t.Name, err)
		}
	}
	for _, s := range []load.Shape{load.ShapeOf(50, 1, 64), load.ShapeOf(50, 16, 64)} {
		for range run.Report.Rounds {
			for _, t := range targets {
				if err := ctx.Err(); err != nil {
					return err
				}
				f, err := load.Round(t, "GET", s, keys, run.RoundTime)
				run.Report.Add(TLSWork(s), t.Name, f, err)
			}
		}
	}
	for _, t := range targets {
		if t.Name == servers.HoldfastTLS || t.Name == servers.BareTLS {
			if err := idleTLS(run, t); err != nil {
				return fmt.Errorf("%s: %w", t.Name, err)
			}
		}
	}
	return nil
}

// idleTLS measures the memory of connections over TLS that do nothing.
func idleTLS(run *work.Run, t *servers.Target) error {
	n := 2000
	if run.Quick {
		n = 200
	}
	const work = "idle connections over TLS"
	var all []net.Conn
	defer func() {
		for _, c := range all {
			c.(*tls.Conn).NetConn().Close()
		}
	}()
	connect := func(i int) error {
		c, err := client.DialMQTT(t.Addr, fmt.Sprint("idle-", i), 0, 512)
		if err != nil {
			return err
		}
		all = append(all, c.Conn)
		return nil
	}
	for i := range 50 { // what the first connections set up is not counted
		if err := connect(-1 - i); err != nil {
			return err
		}
	}
	before := t.Procs.Memory("VmRSS")
	for i := range n {
		if err := connect(i); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
	}
	servers.Settle()
	ping := []byte{wire.Pingreq, 0}
	for _, c := range all {
		if _, err := c.Write(ping); err != nil {
			return err
		}
	}
	servers.Settle()
	run.Report.Measure(work, t.Name, "connections", float64(n), "")
	run.Report.Measure(work, t.Name, "memory each", float64(t.Procs.Memory("VmRSS")-before)/1024/float64(n), "KiB")
	return nil
}
