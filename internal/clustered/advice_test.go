package clustered_test

import (
	"context"
	"strings"
	"testing"
)

// A node warns of the number of nodes that the cluster has, and not of that which it had when the node's database was
// written.
func TestAdviceIsAboutTheNodesOfNow(t *testing.T) {
	t.Parallel()
	const two, four = `level=WARN msg="a cluster of 2 nodes stops`, `level=WARN msg="a cluster of 4 nodes survives the loss of 1`
	c := start(t, "a", "b")
	await(t, "the nodes warn of a cluster of two", func() bool { return strings.Contains(c.log.String(), two) })
	c.join("c", "a")
	c.join("d", "a")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.nodes["b"].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	before := len(c.log.String())
	ofB := func(text string) bool {
		for line := range strings.Lines(c.log.String()[before:]) {
			if strings.Contains(line, text) && strings.Contains(line, "at=b") {
				return true
			}
		}
		return false
	}
	c.run("b")
	await(t, "b warns of a cluster of four", func() bool { return ofB(four) })
	if ofB(two) {
		t.Error("b warns of the cluster of two that it was")
	}
}
