package serve

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/config"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// hangups gives each SIGHUP to a server that reads files of its configuration again, until
// stop. A server without such files ends at SIGHUP, as a program does whose terminal is
// closed.
func hangups(s *server.Server, inForce *settings) (hangup <-chan os.Signal, stop func()) {
	signals := make(chan os.Signal, 1)
	if s.Reloads() || inForce.file != "" {
		signal.Notify(signals, syscall.SIGHUP)
	}
	return signals, func() { signal.Stop(signals) }
}

// untilDone calls reload at each SIGHUP, until ctx ends.
func untilDone(ctx context.Context, hangup <-chan os.Signal, reload func()) {
	for {
		select {
		case <-hangup:
			reload()
		case <-ctx.Done():
			return
		}
	}
}

// adjustable are the settings that change at SIGHUP, besides files that are read again.
var adjustable = append([]string{"log-level", "log-burst"}, server.Adjustable...)

// reload reads the configuration file again, puts in force what may change while the server
// runs, and logs what has changed. If the file cannot be used everything stays as it is.
func (s *settings) reload(running interface{ Adjust(server.Config) }) {
	if s.file == "" {
		return
	}
	log := s.cfg.Logger
	next, err := s.again(os.Environ())
	if err != nil {
		log.Error("keeping the old settings: the configuration cannot be used", "error", err)
		return
	}
	changed, waiting := s.differences(next)
	if len(changed) > 0 {
		s.take(next)
		running.Adjust(s.cfg)
		log.Info("settings were changed", "settings", strings.Join(changed, ", "))
	}
	if len(waiting) > 0 {
		log.Warn("these settings change when the server is started again", "settings", strings.Join(waiting, ", "))
	}
	if len(changed)+len(waiting) == 0 {
		log.Info("the configuration was read again: it says the same", "file", s.file)
	}
}

// again loads the settings again, with the same command line.
func (s *settings) again(environment []string) (*settings, error) {
	next := newSettings(s.cfg.Version)
	for _, g := range s.commandLine {
		if err := next.flags.Set(g.name, g.value); err != nil {
			return nil, fmt.Errorf("--%s: %w", g.name, err)
		}
	}
	return next, next.load(environment)
}

// argument is a flag that the command line gives.
type argument struct{ name, value string }

// arguments are the flags that the command line has set.
func arguments(f *pflag.FlagSet) (all []argument) {
	f.VisitAll(func(flag *pflag.Flag) {
		if !flag.Changed {
			return
		}
		values := []string{flag.Value.String()}
		if list, is := flag.Value.(pflag.SliceValue); is {
			values = list.GetSlice()
		}
		for _, v := range values {
			all = append(all, argument{flag.Name, v})
		}
	})
	return all
}

// differences are the settings that are otherwise in next: those that can change now, with
// both values, and the names of the others.
func (s *settings) differences(next *settings) (changed, waiting []string) {
	old := s.all(s.cfg)
	for i, one := range next.all(next.cfg) {
		same := slices.Equal(old[i].Values, one.Values)
		switch one.Name {
		case config.ListenersKey:
			same = reflect.DeepEqual(s.cfg.Listeners, next.cfg.Listeners)
		case config.BridgesKey:
			same = reflect.DeepEqual(s.cfg.Bridges, next.cfg.Bridges)
		}
		switch {
		case same:
		case slices.Contains(adjustable, one.Name):
			changed = append(changed, fmt.Sprintf("%s from %s to %s", one.Name, valueOr(old[i].Values), valueOr(one.Values)))
		default:
			waiting = append(waiting, one.Name)
		}
	}
	return changed, waiting
}

func valueOr(values []string) string {
	if len(values) == 0 {
		return "the default"
	}
	return strings.Join(values, " ")
}

// take sets the adjustable settings as next has them.
func (s *settings) take(next *settings) {
	s.log.level.Set(next.log.level.Level())
	s.log.burst = next.log.burst
	s.log.quiet.SetBurst(s.log.burst)
	c, n := &s.cfg, &next.cfg
	c.Limits.Adjust(&n.Limits)
	c.AutoSubscribe = n.AutoSubscribe
	c.MaxKeys, c.MaxStoreBytes, c.MaxRemembered = n.MaxKeys, n.MaxStoreBytes, n.MaxRemembered
	c.MaxClientKeys, c.MaxClientKeyBytes = n.MaxClientKeys, n.MaxClientKeyBytes
}
