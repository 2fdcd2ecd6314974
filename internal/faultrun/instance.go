package faultrun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
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
	Name, Address, Share string
	Seed                 uint64
	ClockOffset          time.Duration // of what its handlers see
	StampOffset          time.Duration // of the timestamps of its requests to the store
	Replay               bool          // it is on the state-based path, not on the transactional one
	Panics               float64
	Faults               consistenttest.Faults
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
	conn, err := in.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	rng := rand.New(rand.NewPCG(in.Seed, 1))
	var path []consistent.Option
	if in.Replay {
		path = append(path, consistent.Replay())
	}
	p, err := consistent.New(consistenttest.WithFaults(conn, in.Seed, in.Faults), handlerName, append(path,
		consistent.WithShare(in.Share), consistent.WithDeadLetterTopic(deadLetters), consistent.WithConcurrency(64),
		consistent.WithTimeout(3*time.Second), consistent.WithBackoff(2*time.Millisecond, 200*time.Millisecond),
		consistent.WithNow(func() time.Time { return time.Now().Add(in.ClockOffset) }))...)
	if err != nil {
		return err
	}
	dice := make(chan float64, 16) // one goroutine owns the generator
	go func() {
		for {
			dice <- rng.Float64()
		}
	}()
	register(p, func() {
		if <-dice < in.Panics {
			panic("injected")
		}
	}, rand.Int)
	go func() {
		select {
		case <-p.Subscribed():
			_ = conn.Publish(ctx, consistent.Message{Topic: readyTopic + in.Name})
		case <-ctx.Done():
		}
	}()
	return p.Run(ctx)
}

// dial connects, and retries as long as the broker is not running.
func (in *instance) dial(ctx context.Context) (*consistent.Connection, error) {
	clock := hlc.NewClock(in.Name, hlc.WithWall(func() uint64 { return uint64(time.Now().Add(in.StampOffset).UnixMilli()) }))
	for {
		conn, err := consistent.Dial(ctx, in.Address, client.WithClientID(in.Name), client.WithBackoff(5*time.Millisecond, 100*time.Millisecond), client.WithClock(clock))
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
