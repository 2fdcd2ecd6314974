package clients

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
)

// Nodes of other releases begin a connection for a client with the bytes of the file. Package relay has a
// test of what follows.
func TestFormOfTheMagic(t *testing.T) {
	t.Parallel()
	goldenfile.Exchanged("take connections that begin with either, and begin them with the former one until the cluster has a format level, which you raise (internal/replica/members/level.go), that says that all nodes know the other").
		Check(t, "magic", []byte(Magic))
}
