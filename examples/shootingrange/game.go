package main

import (
	"fmt"

	"github.com/holdfast-mqtt/holdfast/consistent"
)

// The messages of the game.
type (
	// FireAt is a shot of a player at a position.
	FireAt struct {
		GameID, Player string
		Position       int // 0 to 99
	}
	// StartNewRound moves the target of a game.
	StartNewRound struct{ GameID string }

	// Hit says that a shot has hit the target.
	Hit struct {
		GameID, Player, Shot string // Shot is the ID of the FireAt
		Position             int
	}
	// Missed says that it has not, and where the target is.
	Missed struct {
		GameID, Player, Shot string
		Position             int
		Hint                 string // "higher" or "lower"
	}
	// NewRound says that the target has moved.
	NewRound struct{ GameID string }
	// Score is how often a player has hit in a game.
	Score struct {
		GameID, Player string
		Hits           int
	}
)

// The business key of a message is its game.
func (m FireAt) game() string        { return m.GameID }
func (m StartNewRound) game() string { return m.GameID }
func (m Hit) game() string           { return m.GameID }

// attemptsInARound is how many shots a round has; then the target moves.
const attemptsInARound = 5

// Range is the state of one game's shooting range.
type Range struct {
	Open     bool // there is a target
	Target   int
	Attempts int // in this round
}

// newRound moves the target to a random position. The number comes from the context, so
// every program that processes the message again gets the same one.
func (r Range) newRound(c *consistent.Context) Range {
	return Range{Open: true, Target: c.Rand().IntN(100)}
}

func fireAt(c *consistent.Context, r Range, m FireAt) (Range, []consistent.Message, error) {
	if !r.Open {
		r = r.newRound(c)
	}
	var out []consistent.Message
	switch shot := c.MessageID(); {
	case m.Position == r.Target:
		out = append(out, consistent.JSON("games/"+m.GameID+"/hit", Hit{m.GameID, m.Player, shot, m.Position}))
	case m.Position < r.Target:
		out = append(out, consistent.JSON("games/"+m.GameID+"/missed", Missed{m.GameID, m.Player, shot, m.Position, "higher"}))
	default:
		out = append(out, consistent.JSON("games/"+m.GameID+"/missed", Missed{m.GameID, m.Player, shot, m.Position, "lower"}))
	}
	if r.Attempts++; r.Attempts == attemptsInARound {
		r = r.newRound(c)
		out = append(out, consistent.JSON("games/"+m.GameID+"/new", NewRound{m.GameID}))
	}
	return r, out, nil
}

func startNewRound(c *consistent.Context, r Range, m StartNewRound) (Range, []consistent.Message, error) {
	return r.newRound(c), []consistent.Message{consistent.JSON("games/"+m.GameID+"/new", NewRound(m))}, nil
}

// Board is the state of one game's leader board.
type Board struct{ Hits map[string]int }

func countHit(_ *consistent.Context, b Board, m Hit) (Board, []consistent.Message, error) {
	if b.Hits == nil {
		b.Hits = make(map[string]int)
	}
	b.Hits[m.Player]++
	score := consistent.JSON(fmt.Sprintf("games/%s/scores/%s", m.GameID, m.Player), Score{m.GameID, m.Player, b.Hits[m.Player]})
	score.Retain = true // for clients that subscribe later
	return b, []consistent.Message{score}, nil
}

// register is all the infrastructure that the game knows.
func register(p *consistent.Processor) {
	shots := consistent.WithName("range")
	_ = consistent.Handle(p, "games/+/fire", FireAt.game, fireAt, shots)
	_ = consistent.Handle(p, "games/+/round", StartNewRound.game, startNewRound, shots)
	_ = consistent.Handle(p, "games/+/hit", Hit.game, countHit, consistent.WithName("leader-board"))
}
