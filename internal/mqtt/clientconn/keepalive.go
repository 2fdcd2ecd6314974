package clientconn

import (
	"sync"
	"time"
)

// pings keeps a connection alive [MQTT-3.1.2-20], and notices a dead one. It looks at the
// connection four times in a keep-alive interval: if nothing was written, or nothing came,
// for half of the interval, it sends a PINGREQ; if nothing comes for a whole interval after
// that, it ends the connection. So a dead connection is noticed within two intervals, also
// while the client sends.
type pings struct {
	mu      sync.Mutex
	every   time.Duration // under mu: between two looks
	timer   *time.Timer   // under mu; nil: there are no pings
	stopped bool          // under mu

	// Those of the timer's goroutine.
	writes, reads uint64 // at the last look
	silent        int    // looks for which nothing was written
	deaf          int    // looks for which nothing came
	waiting       int    // looks since a PINGREQ, while nothing came; 0: there is none
}

const looksPerInterval = 4

// start begins. An interval of 0 means no pings.
func (p *pings) start(c *Conn, interval time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if interval == 0 || p.stopped {
		return
	}
	p.every = interval / looksPerInterval
	p.timer = time.AfterFunc(p.every, func() {
		if !p.look(c) {
			c.fail(errNoAnswer)
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.stopped {
			p.timer.Reset(p.every)
		}
	})
}

func (p *pings) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	if p.timer != nil {
		p.timer.Stop()
	}
}

// look is false if the connection is dead.
func (p *pings) look(c *Conn) bool {
	p.silent, p.deaf = p.silent+1, p.deaf+1
	if n := c.out.count(); n != p.writes {
		p.writes, p.silent = n, 0
	}
	if n := c.reads.Load(); n != p.reads {
		p.reads, p.deaf, p.waiting = n, 0, 0
	}
	switch {
	case p.waiting > looksPerInterval:
		return false
	case p.waiting > 0:
		p.waiting++
	case p.silent >= looksPerInterval/2 || p.deaf >= looksPerInterval/2:
		c.out.ping()
		p.silent, p.waiting = 0, 1
	}
	return true
}
