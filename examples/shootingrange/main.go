// Command shootingrange is a game in which no shot is ever counted twice, nor lost: an
// example of processing each message exactly once. See its README.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "shootingrange:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("shootingrange", flag.ContinueOnError)
	address := flags.String("address", "localhost:1883", "host and port of the server")
	game := flags.String("game", "demo", "the game to play; players that name the same game play together")
	name := flags.String("player", loginName(), "your name on the leader board")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for what, value := range map[string]string{"-game": *game, "-player": *name} {
		if value == "" || strings.ContainsAny(value, "/+#") {
			return fmt.Errorf("%s %q: it becomes a level of topics, so it can't be empty, nor contain '/', '+' and '#'", what, value)
		}
	}

	// The range and the leader board. Every program that runs shares the work, under a name
	// of its own.
	conn, err := consistent.Dial(ctx, *address, client.WithClientID("shootingrange-"+*name))
	if err != nil {
		return fmt.Errorf("%w (is the server running? go run ./cmd/holdfast serve)", err)
	}
	defer conn.Close()
	p, err := consistent.New(conn, "shootingrange", consistent.WithShare("shootingrange"), consistent.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))
	if err != nil {
		return err
	}
	register(p)
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(working) }()

	// The player.
	session, err := client.DialSession(ctx, *address)
	if err != nil {
		stop()
		return errors.Join(err, <-ended)
	}
	defer session.Close()
	you := &player{game: *game, name: *name, session: session, out: out, seen: make(map[string]bool), mine: make(map[string]bool),
		board: func(ctx context.Context) (b Board, found bool, err error) {
			v, found, err := conn.Client().Get(ctx, "leader-board/"+*game)
			if err == nil && found {
				err = json.Unmarshal(v.Bytes, &b)
			}
			return b, found, err
		}}
	select {
	case <-p.Subscribed():
		err = you.watch(ctx)
	case <-ctx.Done():
	}
	if err == nil {
		you.say("the range of game %q is open, %s; type help for help\n", *game, *name)
		played := make(chan error, 1)
		go func() { played <- you.play(ctx, in) }()
		select {
		case err = <-played:
		case <-ctx.Done():
		case err = <-ended:
			ended <- err
		}
	}
	you.awaitAnswers(ctx)
	stop()
	return errors.Join(err, <-ended)
}

// awaitAnswers gives what was fired last a moment to be answered.
func (p *player) awaitAnswers(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 200 {
		p.mu.Lock()
		open := len(p.mine)
		p.mu.Unlock()
		if open == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func loginName() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "player"
}

func sortedKeys(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }
