package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
)

// player is the person at the terminal.
type player struct {
	game, name string
	session    *client.Session
	board      func(context.Context) (b Board, found bool, err error) // the leader board's state

	mu   sync.Mutex
	out  io.Writer       // under mu
	seen map[string]bool // under mu: events that were shown; a duplicate says nothing new
	mine map[string]bool // under mu: shots of this terminal that are not answered
	last client.Message
}

// patience is how long a person waits for the server before being told.
const patience = 5 * time.Second

const help = `  fire N   shoot at position N, 0 to 99
  again    send the last shot once more, as a network does that has lost the answer
  new      start a new round
  score    show the scores
  quit     leave the range
`

// watch subscribes to what happens in the game, and shows it until ctx ends or the
// session is closed.
func (p *player) watch(ctx context.Context) error {
	prefix := "games/" + p.game + "/"
	if err := p.session.Subscribe(ctx, prefix+"hit", prefix+"missed", prefix+"new"); err != nil {
		return err
	}
	go func() {
		for d, err := range p.session.Messages(ctx) {
			if err != nil {
				return // the game is over
			}
			p.happened(strings.TrimPrefix(d.Topic, prefix), &d)
			d.Ack()
		}
	}()
	return nil
}

// happened shows an event, once.
func (p *player) happened(kind string, d *client.Delivery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id, _ := d.UserProperties.Get("id"); !p.seen[id] {
		p.seen[id] = true
		p.show(kind, d.Payload)
	}
}

// show prints an event. The caller holds mu.
func (p *player) show(kind string, payload []byte) {
	var m Missed // has everything that the others have
	if err := json.Unmarshal(payload, &m); err != nil {
		fmt.Fprintf(p.out, "what came as %s can't be read: %v\n", kind, err)
		return
	}
	who := m.Player
	if p.mine[m.Shot] {
		delete(p.mine, m.Shot)
		who = "you"
	}
	switch kind {
	case "hit":
		fmt.Fprintf(p.out, "%d: %s HIT the target\n", m.Position, who)
	case "missed":
		fmt.Fprintf(p.out, "%d: %s missed, the target is %s\n", m.Position, who, m.Hint)
	case "new":
		fmt.Fprintln(p.out, "the target has moved")
	}
}

func (p *player) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format, args...)
}

// play does what the person types, until that ends.
func (p *player) play(ctx context.Context, in io.Reader) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		if words[0] == "quit" {
			return nil
		}
		if err := p.do(ctx, words); err != nil {
			p.say("%v\n", err)
		}
	}
	return lines.Err()
}

func (p *player) do(ctx context.Context, words []string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch words[0] {
	case "fire":
		return p.fire(ctx, words[1:])
	case "again":
		if p.last.Topic == "" {
			return errors.New("there is no shot to send again: fire first")
		}
		return p.session.Publish(ctx, p.last)
	case "new":
		return p.session.Publish(ctx, event(rand.Text(), consistent.JSON("games/"+p.game+"/round", StartNewRound{p.game})))
	case "score":
		return p.scores(ctx)
	}
	p.say("%s", help)
	return nil
}

func (p *player) fire(ctx context.Context, words []string) error {
	if len(words) != 1 {
		return errors.New("fire at what? A position from 0 to 99: fire 50")
	}
	position, err := strconv.Atoi(words[0])
	if err != nil || position < 0 || position > 99 {
		return fmt.Errorf("%q is no position: they go from 0 to 99", words[0])
	}
	id := rand.Text()
	p.last = event(id, consistent.JSON("games/"+p.game+"/fire", FireAt{p.game, p.name, position}))
	p.mu.Lock()
	p.mine["event:5:shots"+id] = true // how the range calls it
	p.mu.Unlock()
	return p.session.Publish(ctx, p.last)
}

// event gives a message its identity. One that is sent again keeps it.
func event(id string, m consistent.Message) consistent.Message {
	m.UserProperties = append(m.UserProperties, consistent.UserProperty{Name: "id", Value: id}, consistent.UserProperty{Name: "source", Value: "shots"},
		consistent.UserProperty{Name: "time", Value: time.Now().UTC().Format(time.RFC3339Nano)})
	return m
}

// scores shows the leader board.
func (p *player) scores(ctx context.Context) error {
	v, found, err := p.board(ctx)
	switch {
	case err != nil:
		return err
	case !found || len(v.Hits) == 0:
		p.say("no player has hit the target yet\n")
	}
	for _, name := range sortedKeys(v.Hits) {
		p.say("%4d  %s\n", v.Hits[name], name)
	}
	return nil
}
