// Command attack runs every attack at full size against the built program with its
// default settings, and prints what its other users noticed as a table.
//
//	go run ./internal/abuse/attack
//	go run ./internal/abuse/attack -only 'filters|pings'
//	go run ./internal/abuse/attack -flags '--max-memory 2GiB' -record docs/attacks.json -column after -into docs/reliability.md
//	go run ./internal/abuse/attack -only nothing -record docs/attacks.json -into docs/reliability.md
//
// The last of these runs nothing and writes the table of earlier runs anew.
//
// A server whose resident memory passes -ceiling is killed, to protect the machine.
// The exit status is 1 if something did not hold.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/abuse"
	"github.com/holdfast-mqtt/holdfast/internal/abuse/record"
	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// binaryVariable tells the program that runs in a network of its own what was built.
const binaryVariable = "HOLDFAST_ABUSE_BINARY"

type flags struct {
	options              abuse.Options
	only                 string
	small                bool
	record, column, into string
	program, flags       string
}

func main() {
	var f flags
	flag.StringVar(&f.options.Binary, "binary", "", "path of the program; empty: build it")
	flag.StringVar(&f.program, "program", "", "what the record calls the program: a commit")
	flag.Int64Var(&f.options.Ceiling, "ceiling", 6<<10, "MiB of resident memory at which the server is killed")
	flag.StringVar(&f.flags, "flags", "", "more flags for holdfast serve, with spaces")
	flag.StringVar(&f.only, "only", "", "pattern of the names of the attacks to run; empty: all")
	flag.BoolVar(&f.small, "small", false, "small attacks on a server with small bounds, as the tests have them")
	flag.StringVar(&f.record, "record", "", "file in which the figures of earlier runs are kept, and these added")
	flag.StringVar(&f.column, "column", "after", "with -record: what these figures are: before or after")
	flag.StringVar(&f.into, "into", "", "with -record: document whose table is brought up to date")
	flag.Parse()
	held, err := f.run()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(2)
	case !held:
		os.Exit(1)
	}
}

func (f *flags) run() (held bool, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	only, err := regexp.Compile(f.only)
	if err != nil {
		return false, fmt.Errorf("-only: %w", err)
	}
	dir, remove, err := harness.TempDir()
	if err != nil {
		return false, err
	}
	defer remove()
	if f.options.Binary == "" {
		f.options.Binary = os.Getenv(binaryVariable)
	}
	if f.options.Binary == "" {
		if f.options.Binary, err = process.Build(dir, process.Holdfast); err != nil {
			return false, err
		}
	}
	status, ran, err := abuse.OwnNetwork(binaryVariable + "=" + f.options.Binary)
	if err != nil || ran {
		return status == 0, err
	}
	f.options.Flags = strings.Fields(f.flags)
	f.options.Dir, f.options.Size = dir, abuse.Full
	if f.small {
		f.options.Size = abuse.Small
	}
	figures := &record.Record{}
	if f.record != "" {
		if figures, err = record.Read(f.record); err != nil {
			return false, err
		}
	}
	held = true
	for _, a := range abuse.Attacks() {
		if !only.MatchString(a.Name) || ctx.Err() != nil {
			continue
		}
		begun := time.Now()
		r, err := abuse.Run(ctx, a, f.options)
		if err != nil {
			return false, err
		}
		fmt.Fprintf(os.Stderr, "%s: %d MiB, %v\n", a.Name, r.Peak>>20, time.Since(begun).Round(100*time.Millisecond))
		for _, broken := range r.Broken {
			held = false
			fmt.Fprintf(os.Stderr, "\tdid not hold: %s\n", broken)
		}
		figures.Add(f.column, f.program, r)
		if err := f.keep(figures); err != nil {
			return false, err
		}
	}
	fmt.Print(figures.Markdown())
	return held, errors.Join(f.keep(figures), ctx.Err())
}

// keep writes after each attack: a run takes minutes.
func (f *flags) keep(figures *record.Record) error {
	if f.record == "" {
		return nil
	}
	if err := figures.Write(f.record); err != nil {
		return err
	}
	if f.into == "" {
		return nil
	}
	return figures.Insert(f.into)
}
