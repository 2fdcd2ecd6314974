package protocol_test

import "holdfast/internal/protocol"

// resp is the payload of a request with these arguments.
func resp(args ...string) []byte {
	blobs := make([][]byte, len(args))
	for i, arg := range args {
		blobs[i] = []byte(arg)
	}
	return protocol.AppendCommand(nil, blobs...)
}
