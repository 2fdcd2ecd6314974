package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"

	"github.com/holdfast-mqtt/holdfast/bench/compare/wire"
)

// tlsWork names the GETs that are compared over TLS.
func tlsWork(s shape) string { return fmt.Sprint("GET over TLS ", s) }

// overTLS compares GET over TLS with a bare loop over TLS, and both with the same over
// TCP; and what idle connections take.
func (b *bench) overTLS(ctx context.Context) error {
	var targets []*target
	for _, name := range []string{holdfastTLS, bareTLS, holdfast, bareLoop} {
		if t := b.lab.start(ctx, name); t != nil {
			defer t.stop()
			targets = append(targets, t)
		}
	}
	keys := keyNames(keyCount)
	for _, t := range targets {
		if err := t.preload(keys, strings.Repeat("v", 64), 1, 50); err != nil {
			return fmt.Errorf("%s: setting the keys: %w", t.name, err)
		}
	}
	for _, s := range []shape{{50, 1, 64}, {50, 16, 64}} {
		for range b.report.Rounds {
			for _, t := range targets {
				if err := ctx.Err(); err != nil {
					return err
				}
				f, err := t.round("GET", s, keys, b.roundTime)
				b.report.add(tlsWork(s), t.name, f, err)
			}
		}
	}
	for _, t := range targets {
		if t.name == holdfastTLS || t.name == bareTLS {
			if err := b.idleTLS(t); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
		}
	}
	return nil
}

// idleTLS measures the memory of connections over TLS that do nothing.
func (b *bench) idleTLS(t *target) error {
	n := 2000
	if b.quick {
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
		c, err := dialMQTT(t.addr, fmt.Sprint("idle-", i), 0, 512)
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
	before := t.procs.memory("VmRSS")
	for i := range n {
		if err := connect(i); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
	}
	settle()
	ping := []byte{wire.Pingreq, 0}
	for _, c := range all {
		if _, err := c.Write(ping); err != nil {
			return err
		}
	}
	settle()
	b.report.measure(work, t.name, "connections", float64(n), "")
	b.report.measure(work, t.name, "memory each", float64(t.procs.memory("VmRSS")-before)/1024/float64(n), "KiB")
	return nil
}
