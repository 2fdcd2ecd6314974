package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestARunFindsTheRepository(t *testing.T) {
	t.Parallel()
	dir, err := findRepository()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cmd/holdfast")); err != nil {
		t.Errorf("%s is taken for the repository: %v", dir, err)
	}
}
