package mux

import (
	"errors"
	"net"
	"strings"
	"testing"
)

// The version of a link is the highest one that both programs speak. Without one the link is
// refused, and each program that can says what both speak, and what to do.
func TestGreeting(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		front, node   Versions
		busy          bool   // the node takes no streams
		version       int    // of the link; 0: none
		atFront, says string // in the errors of front and node; empty: none
		why           error  // that of the front
	}{
		"the same":                    {front: Versions{2, 2}, node: Versions{2, 2}, version: 2},
		"this program":                {front: Own, node: Own, version: Own.Highest},
		"the node is newer":           {front: Versions{2, 2}, node: Versions{2, 3}, version: 2},
		"the front is newer":          {front: Versions{2, 3}, node: Versions{2, 2}, version: 2},
		"both know older ones":        {front: Versions{2, 4}, node: Versions{3, 5}, version: 4},
		"a busy node":                 {front: Versions{2, 3}, node: Versions{2, 2}, busy: true, atFront: "no streams", says: "no streams", why: ErrRefused},
		"the node is much newer":      {front: Versions{2, 2}, node: Versions{3, 4}, atFront: "the node from version 3 on, and this front version 2: run the release of the nodes here", says: "the front up to version 2, and this node versions 3 to 4: run the release of the nodes", why: ErrVersion},
		"a busy one that is newer":    {front: Versions{2, 2}, node: Versions{3, 4}, busy: true, atFront: "the node from version 3 on", says: "the front up to version 2", why: ErrVersion},
		"the front is much newer":     {front: Versions{3, 4}, node: Versions{2, 2}, atFront: "the node up to version 2, and this front versions 3 to 4: upgrade the node", why: ErrVersion},
		"a busy node and a newer one": {front: Versions{3, 4}, node: Versions{2, 2}, busy: true, atFront: "the node up to version 2", says: "no streams", why: ErrVersion},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := net.Pipe()
			defer near.Close()
			defer far.Close()
			type answer struct {
				version int
				err     error
			}
			welcomed := make(chan answer)
			go func() {
				version, err := c.node.Welcome(far, !c.busy)
				welcomed <- answer{version, err}
			}()
			version, err := c.front.Greet(near)
			if version != c.version || !errors.Is(err, c.why) || (err == nil) != (c.atFront == "") || err != nil && !strings.Contains(err.Error(), c.atFront) {
				t.Errorf("the front: version %d, %v", version, err)
			}
			a := <-welcomed
			if (a.err == nil) != (c.says == "") || a.err != nil && !strings.Contains(a.err.Error(), c.says) || c.version != 0 && a.version != c.version {
				t.Errorf("the node: version %d, %v", a.version, a.err)
			}
		})
	}
}
