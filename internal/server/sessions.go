package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"

	"github.com/holdfast-mqtt/holdfast/internal/broker"
)

// sessionsPath is where sessions are listed and ended. GET: the answer is one
// sessionLine per session, in the order of their client IDs, and one with Done. POST,
// a sessionActions as JSON: the answer is one sessionLine per client ID, in the order
// given, and one with Done.
const sessionsPath = "/v1/sessions"

// SessionAction is what an operator may do to a session.
type SessionAction string

const (
	// Kick disconnects the client; its session lives on for its expiry.
	Kick SessionAction = "kick"
	// Delete ends the session with all that it holds.
	Delete SessionAction = "delete"
)

// actionsAtOnce is how many client IDs one request may have.
const actionsAtOnce = 500

// maxActions bounds the body of a request: as many client IDs of the longest that
// MQTT can say, as JSON has them.
const maxActions = 64 << 20

type sessionActions struct {
	Action    SessionAction
	ClientIDs []string
}

type sessionLine struct {
	Session  *broker.SessionInfo `json:",omitempty"`
	ClientID string              `json:",omitempty"`
	Found    bool                `json:",omitempty"`
	Done     bool                `json:",omitempty"`
}

// flushEvery is how many lines may wait before the operator is shown them.
const flushEvery = 256

func (s *Server) serveSessions(w http.ResponseWriter, r *http.Request) {
	lines := json.NewEncoder(w)
	flush := http.NewResponseController(w)
	for i, id := range s.broker.Sessions.ClientIDs() {
		info, ok := s.broker.Sessions.Info(id)
		if !ok {
			continue // it has ended meanwhile
		}
		if lines.Encode(sessionLine{Session: &info}) != nil {
			return // the operator has gone
		}
		if i%flushEvery == flushEvery-1 && flush.Flush() != nil {
			return
		}
	}
	_ = lines.Encode(sessionLine{Done: true})
}

func (s *Server) serveSessionActions(w http.ResponseWriter, r *http.Request) {
	var q sessionActions
	if err := json.NewDecoder(io.LimitReader(r.Body, maxActions)).Decode(&q); err != nil || len(q.ClientIDs) > actionsAtOnce {
		http.Error(w, fmt.Sprintf("want an action and at most %d client IDs", actionsAtOnce), http.StatusBadRequest)
		return
	}
	var act func(clientID string) (found bool)
	switch q.Action {
	case Kick:
		act = s.broker.Sessions.Kick
	case Delete:
		act = s.broker.Sessions.EndSession
	default:
		http.Error(w, fmt.Sprintf("the action %q is not known", q.Action), http.StatusBadRequest)
		return
	}
	lines := json.NewEncoder(w)
	for _, id := range q.ClientIDs {
		found := act(id)
		select {
		case <-s.journal.Over():
			return // the answer lacks Done
		default:
		}
		if found {
			s.log.Info("an operator acts on a session", "action", string(q.Action), "client", id)
			s.audit.Operated(id, q.Action == Delete)
		}
		if lines.Encode(sessionLine{ClientID: id, Found: found}) != nil {
			return // the operator has gone
		}
	}
	_ = lines.Encode(sessionLine{Done: true})
}

// Sessions lists the sessions of the server that runs on dataDir, one by one, in
// the order of their client IDs. An error comes last.
func Sessions(ctx context.Context, dataDir string) iter.Seq2[broker.SessionInfo, error] {
	return func(yield func(broker.SessionInfo, error) bool) {
		for line, err := range sessionLines(ctx, dataDir, http.MethodGet, nil) {
			if err != nil {
				yield(broker.SessionInfo{}, err)
				return
			}
			if !yield(*line.Session, nil) {
				return
			}
		}
	}
}

// ActOnSessions kicks or deletes sessions of the server that runs on dataDir, and
// says of each client ID whether there was something to do: a connection to end, or
// a session. An error comes last.
func ActOnSessions(ctx context.Context, dataDir string, action SessionAction, clientIDs iter.Seq[string]) iter.Seq2[Acted, error] {
	return func(yield func(Acted, error) bool) {
		next, stop := iter.Pull(clientIDs)
		defer stop()
		for more := true; more; {
			q := sessionActions{Action: action}
			for len(q.ClientIDs) < actionsAtOnce {
				var id string
				if id, more = next(); !more {
					break
				}
				q.ClientIDs = append(q.ClientIDs, id)
			}
			if len(q.ClientIDs) == 0 {
				return
			}
			body, err := json.Marshal(q)
			if err != nil {
				yield(Acted{}, err)
				return
			}
			for line, err := range sessionLines(ctx, dataDir, http.MethodPost, body) {
				if err != nil {
					yield(Acted{}, err)
					return
				}
				if !yield(Acted{ClientID: line.ClientID, Found: line.Found}, nil) {
					return
				}
			}
		}
	}
}

// Acted is what an action on one session came to.
type Acted struct {
	ClientID string
	Found    bool
}

// sessionLines makes a request and gives the lines of its answer up to Done.
func sessionLines(ctx context.Context, dataDir, method string, body []byte) iter.Seq2[sessionLine, error] {
	return func(yield func(sessionLine, error) bool) {
		answer, err := askControl(ctx, dataDir, method, sessionsPath, bytes.NewReader(body))
		if err != nil {
			yield(sessionLine{}, err)
			return
		}
		defer answer.Close()
		for lines := json.NewDecoder(answer); ; {
			var line sessionLine
			switch err := lines.Decode(&line); {
			case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
				yield(line, errors.New("the server ended the connection before the list was complete"))
				return
			case err != nil:
				yield(line, fmt.Errorf("the server's answer cannot be understood: %w", err))
				return
			case line.Done || !yield(line, nil):
				return
			}
		}
	}
}
