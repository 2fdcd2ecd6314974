package consensus

import (
	"fmt"
	"log/slog"
)

// logger passes on what the library logs: its own information is of use for debugging only,
// since Office tells what operators want to know.
type logger struct{ to *slog.Logger }

func (l logger) Debug(...any)                {}
func (l logger) Debugf(string, ...any)       {}
func (l logger) Info(...any)                 {}
func (l logger) Infof(string, ...any)        {}
func (l logger) Warning(v ...any)            { l.to.Warn("raft: " + fmt.Sprint(v...)) }
func (l logger) Warningf(f string, v ...any) { l.to.Warn("raft: " + fmt.Sprintf(f, v...)) }
func (l logger) Error(v ...any)              { l.to.Error("raft: " + fmt.Sprint(v...)) }
func (l logger) Errorf(f string, v ...any)   { l.to.Error("raft: " + fmt.Sprintf(f, v...)) }

// The library calls these where it can't go on: the log contradicts what it knows.

func (l logger) Fatal(v ...any)            { panic("raft: " + fmt.Sprint(v...)) }
func (l logger) Fatalf(f string, v ...any) { panic("raft: " + fmt.Sprintf(f, v...)) }
func (l logger) Panic(v ...any)            { panic("raft: " + fmt.Sprint(v...)) }
func (l logger) Panicf(f string, v ...any) { panic("raft: " + fmt.Sprintf(f, v...)) }
