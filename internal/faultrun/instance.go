package faultrun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// instanceVariable is set in the environment of a process that is to be an instance.
const instanceVariable = "HOLDFAST_FAULTRUN_INSTANCE"

// readyTopic, with the instance's name behind it, is the topic to which an instance
// publishes that it gets messages.
const readyTopic = "ready/"

// running is what an instance prints once SIGTERM no longer kills it but stops it.
const running = "instance runs"

// instance configures a process that processes messages.
type instance struct {
	Name, Share string
	Addresses   []string // of the broker
	Seed        uint64
	Version     uint32        // of the program
	ClockOffset time.Duration // of what its handlers see
	StampOffset time.Duration // of the timestamps of its requests to the store
	Replay      bool          // it is on the state-based path, not on the transactional one
	Panics      float64
	Faults      consistenttest.Faults
}

// Instance must be called first by a program that runs this package's [Run]: if the
// process was started to be an instance it is one, and never returns.
func Instance() {
	text := os.Getenv(instanceVariable)
	if text == "" {
		return
	}
	var in instance
	err := json.Unmarshal([]byte(text), &in)
	if err == nil {
		err = in.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "instance:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (in *instance) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println(running)
	rng := rand.New(rand.NewPCG(in.Seed, 1))
	var path []consistent.Option
	if in.Replay {
		path = append(path, consistent.Replay())
	}
	dice := make(chan float64, 16) // one goroutine owns the generator
	go func() {
		for {
			dice <- rng.Float64()
		}
	}()
	disturb := func() {
		if <-dice < in.Panics {
			panic("injected")
		}
	}
	names := []string{shiftName, ledgerName, tallyName}
	ended, subscribed := make(chan error, len(names)), make([]<-chan struct{}, 0, len(names))
	var last *consistent.Connection
	for _, name := range names {
		conn, err := in.dial(ctx, name)
		if ctx.Err() != nil {
			return nil // it has been stopped before it could connect
		}
		if err != nil {
			return err
		}
		defer conn.Close()
		p, err := consistent.New(consistenttest.WithFaults(newSharing(ctx, conn), in.Seed, in.Faults), name, append(path[:len(path):len(path)],
			consistent.WithShare(in.Share), consistent.WithDeadLetterTopic(deadLetters), consistent.WithConcurrency(64),
			consistent.WithTimeout(3*time.Second), consistent.WithBackoff(2*time.Millisecond, 200*time.Millisecond),
			consistent.WithKeptDeadLetters(keptLetters, 1<<20, time.Hour), consistent.WithLogger(slog.New(&refusals{conn})),
			consistent.WithNow(func() time.Time { return time.Now().Add(in.ClockOffset) }))...)
		if err != nil {
			return err
		}
		register(p, name, in.Version, disturb, rand.Int)
		go func() {
			err := p.Run(ctx)
			stop()
			ended <- err
		}()
		subscribed = append(subscribed, p.Subscribed())
		last = conn
	}
	go func() {
		for _, s := range subscribed {
			select {
			case <-s:
			case <-ctx.Done():
				return
			}
		}
		_ = last.Publish(ctx, consistent.Message{Topic: readyTopic + in.Name})
	}()
	var all error
	for range names {
		all = errors.Join(all, <-ended)
	}
	return all
}

// keptLetters is how many dead letters a processor keeps in the store, which is to become full
// of states.
const keptLetters = 8

// refusals is a log that has lines published of what the server has refused because the store
// is full.
type refusals struct{ conn *consistent.Connection }

// refusedTopic is the topic of such a line.
const refusedTopic = "refused"

func (*refusals) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (r *refusals) WithAttrs([]slog.Attr) slog.Handler         { return r }
func (r *refusals) WithGroup(string) slog.Handler              { return r }

func (r *refusals) Handle(ctx context.Context, line slog.Record) error {
	line.Attrs(func(a slog.Attr) bool {
		if err, is := a.Value.Any().(error); is && strings.Contains(err.Error(), client.ErrQuotaExceeded.Error()) {
			go func() { _ = r.conn.Publish(context.WithoutCancel(ctx), consistent.Message{Topic: refusedTopic}) }()
		}
		return true
	})
	return nil
}

// dial connects, and retries as long as the broker is not running. Each processor has a session
// of its own, so that the queues of ledger and tally do not hold up the shift, which fills them.
func (in *instance) dial(ctx context.Context, processor string) (*consistent.Connection, error) {
	name := in.Name + "-" + processor
	clock := hlc.NewClock(name, hlc.WithWall(func() uint64 { return uint64(time.Now().Add(in.StampOffset).UnixMilli()) }))
	for {
		conn, err := consistent.Dial(ctx, in.Addresses[0], through(in.Addresses), client.WithClientID(name), client.WithBackoff(5*time.Millisecond, 100*time.Millisecond), client.WithClock(clock),
			client.WithLogger(slog.New(slog.DiscardHandler)))
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// start runs an instance in a process of its own.
func (in *instance) start() (*process.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), instanceVariable+"="+string(text))
	return process.Start(cmd, regexp.MustCompile(running))
}

// stopInstance ends an instance with SIGTERM, also one that is paused or that has only
// just been started.
func stopInstance(p *process.Process) error {
	p.Signal(resumeSignal)
	if err := p.AwaitReady(); err != nil {
		return err
	}
	if !p.Stop(patience) {
		return errors.New("an instance does not end")
	}
	if !p.State().Success() {
		return fmt.Errorf("an instance ended with %v: %s", p.State(), p.Output())
	}
	return nil
}
