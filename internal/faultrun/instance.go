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
	"strings"
	"syscall"
	"time"

	"holdfast/client"
	"holdfast/consistent"
	"holdfast/consistent/consistenttest"
)

// instanceVariable tells a process of this program that it is to be an instance.
const instanceVariable = "HOLDFAST_FAULTRUN_INSTANCE"

// readyTopic and its name is where an instance says that it gets messages.
const readyTopic = "ready/"

// instance is what a process that processes messages is told.
type instance struct {
	Name, Address, Share string
	Seed                 uint64
	ClockOffset          time.Duration
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
	conn, err := in.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	rng := rand.New(rand.NewPCG(in.Seed, 1))
	p := consistent.New(consistenttest.WithFaults(conn, in.Seed, in.Faults), consistent.Options{
		Name: handlerName, Share: in.Share, DeadLetterTopic: deadLetters, Concurrency: 64,
		Timeout: 3 * time.Second, Retry: consistent.Retry{First: 2 * time.Millisecond, Longest: 200 * time.Millisecond},
		Clock: func() time.Time { return time.Now().Add(in.ClockOffset) },
	})
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

// dial connects, however long the broker is away.
func (in *instance) dial(ctx context.Context) (*consistent.Connection, error) {
	for {
		conn, err := consistent.Dial(ctx, in.Address, client.WithClientID(in.Name), client.WithBackoff(5*time.Millisecond, 100*time.Millisecond))
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

// worker is a running instance, seen from the run.
type worker struct {
	cmd  *exec.Cmd
	said strings.Builder
	done chan struct{}
}

func (in *instance) start() (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.Command(self), done: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), instanceVariable+"="+string(text))
	w.cmd.Stdout, w.cmd.Stderr = &w.said, &w.said
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(w.done)
		_ = w.cmd.Wait()
	}()
	return w, nil
}

func (w *worker) signal(s os.Signal) { _ = w.cmd.Process.Signal(s) }

func (w *worker) kill() {
	w.signal(syscall.SIGKILL)
	<-w.done
}

// stop ends the instance well.
func (w *worker) stop() error {
	w.signal(resumeSignal)
	w.signal(syscall.SIGTERM)
	select {
	case <-w.done:
	case <-time.After(patience):
		w.kill()
		return errors.New("an instance does not end")
	}
	if !w.cmd.ProcessState.Success() {
		return fmt.Errorf("an instance ended with %v: %s", w.cmd.ProcessState, w.said.String())
	}
	return nil
}
