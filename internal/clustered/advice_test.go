package clustered_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
	restarted := "a"
	if leader, _ := c.leader(); leader == "a" {
		restarted = "b"
	}
	crashed := copyOf(t, c.dirs[restarted]) // the database of a node that is shut down would know the nodes
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.nodes[restarted].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	c.dirs[restarted] = crashed
	before := len(c.log.String())
	says := func(text string) bool {
		for line := range strings.Lines(c.log.String()[before:]) {
			if strings.Contains(line, text) && strings.Contains(line, "at="+restarted) {
				return true
			}
		}
		return false
	}
	c.run(restarted)
	await(t, "the node warns of a cluster of four", func() bool { return says(four) })
	if says(two) {
		t.Error("it warns of the cluster of two that it was")
	}
}

// copyOf copies the files of a running node's directory, but for its sockets.
func copyOf(t *testing.T, dir string) (copied string) {
	t.Helper()
	copied = t.TempDir()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(filepath.Join(copied, name), 0o700)
		case !d.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(copied, name), content, 0o600)
	})
	if errors.Is(err, fs.ErrNotExist) { // the node has removed a file meanwhile
		return copyOf(t, dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	return copied
}
