package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
)

// binaryKeysPath is where the keys are listed that SCAN does not list. GET: the
// answer is one keyLine per key, in their order, and one with Done or Error.
const binaryKeysPath = "/v1/keys/binary"

type keyLine struct {
	Key   []byte `json:",omitempty"` // in base 64
	Done  bool   `json:",omitempty"`
	Error string `json:",omitempty"`
}

func (s *Server) serveBinaryKeys(w http.ResponseWriter, _ *http.Request) {
	lines := json.NewEncoder(w)
	gone := false
	err := s.engine.BinaryKeys(func(key []byte) bool {
		gone = lines.Encode(keyLine{Key: key}) != nil
		return !gone
	})
	switch {
	case gone:
	case err != nil:
		_ = lines.Encode(keyLine{Error: err.Error()})
	default:
		_ = lines.Encode(keyLine{Done: true})
	}
}

// BinaryKeys lists the keys that are not UTF-8 in the server that runs on dataDir, in
// their order. An error comes last.
func BinaryKeys(ctx context.Context, dataDir string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		answer, err := askControl(ctx, dataDir, http.MethodGet, binaryKeysPath, nil)
		if err != nil {
			yield("", err)
			return
		}
		defer answer.Close()
		for lines := json.NewDecoder(answer); ; {
			var line keyLine
			switch err := lines.Decode(&line); {
			case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
				yield("", errors.New("the server has gone before it had told everything"))
				return
			case err != nil:
				yield("", fmt.Errorf("the server's answer cannot be understood: %w", err))
				return
			case line.Error != "":
				yield("", errors.New(line.Error))
				return
			case line.Done || !yield(string(line.Key), nil):
				return
			}
		}
	}
}
