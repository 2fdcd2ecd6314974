package server

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe in the place of a file does not hold up reloading, nor the end of the server.
func TestReloadDoesNotWaitForAPipe(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("rules: [{brokerResources: [{method: Connect}]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, func(c *Config) { c.Policy = file })
	for _, put := range []func() error{
		func() error { return syscall.Mkfifo(file, 0o600) },
		func() error { return os.Mkdir(file, 0o700) },
	} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := put(); err != nil {
			t.Fatal(err)
		}
		if err := s.Reload(); err == nil || !strings.Contains(err.Error(), file+": this is not a regular file") {
			t.Errorf("got %v", err)
		}
	}
}
