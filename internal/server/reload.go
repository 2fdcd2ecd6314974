package server

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/filestate"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/policy"
)

// Reloader is something of the configuration that is read again while the server runs: on
// Server.Reload, which SIGHUP calls, and when one of its files has changed.
type Reloader struct {
	Name  string          // for the log, such as "policy"
	Files func() []string // those that it is read from, at the moment
	// Reload reads the files and puts what they say in force. After an error, which names
	// file and line, everything is as it was. It is called by one goroutine at a time.
	Reload func() error
}

// DefaultReloadInterval is how often files are looked at.
const DefaultReloadInterval = 2 * time.Second

// reloading has the reloaders, and what their files looked like when they were read.
type reloading struct {
	mu       lockrank.Mutex[lockrank.Reloading] // held while files are read
	watch    []*watched                         // set before the files are watched, and before Replicated.Standby
	audit    bool                               // the audit log could not be opened again, and goes on in its old file; guarded by mu
	broker   *broker.Broker                     // whose clients are asked again; guarded by mu; nil: there is none yet
	adjusted *Config                            // what Adjust was given before that; guarded by mu; nil: nothing
}

// watched is a reloader and its files.
type watched struct {
	Reloader
	read    []filestate.State // when they were read last
	changed []filestate.State // what the last look found, if it was something else
	// unread is why the files could not be read last, whatever is in them: they are tried
	// again at each look, until they can be. Empty: they were read.
	unread string
}

// Reload reads again whatever can be: certificates, passwords, keys of tokens, the
// policy; and it opens the audit log again. What can't be read stays as it is; the error
// names all of it.
func (s *Server) Reload() error {
	s.reloading.mu.Lock()
	defer s.reloading.mu.Unlock()
	errs := []error{s.reopenAudit()}
	for _, w := range s.reloading.watch {
		errs = append(errs, s.reload(w))
	}
	return errors.Join(errs...)
}

// Reloads says whether there is anything that Reload reads.
func (s *Server) Reloads() bool { return len(s.reloading.watch) > 0 || s.audit != nil }

// reopenAudit opens the audit log again; reloading.mu is held.
func (s *Server) reopenAudit() error {
	err := s.audit.Reopen()
	if err != nil && !s.reloading.audit {
		s.log.Error("the audit log goes on in its old file until the new one can be opened", "error", err)
	}
	s.reloading.audit = err != nil
	return err
}

// reload reads one reloader's files; reloading.mu is held.
func (s *Server) reload(w *watched) error {
	w.read, w.changed = filestate.Of(w.Files()), nil // before it is read: a change after that counts
	err := filestate.Readable(w.read)
	if err == nil {
		err = w.Reload()
	}
	before := w.unread
	w.unread = ""
	if err != nil && filestate.MayPass(err) {
		if w.unread = err.Error(); w.unread == before {
			return fmt.Errorf("%s: %w", w.Name, err) // it is in the log
		}
	}
	s.audit.Reloaded(w.Name, w.Files(), err)
	if err != nil {
		s.log.Error("keeping the old "+w.Name+": the new one cannot be used", "error", err)
		return fmt.Errorf("%s: %w", w.Name, err)
	}
	s.log.Info("the "+w.Name+" was read again", "files", w.Files())
	if s.reloading.broker != nil {
		s.reloading.broker.Recheck()
	}
	return nil
}

// endingRevoked is reload for a Reloader, after which clients are disconnected whose identity does
// not hold any longer.
func (s *Server) endingRevoked(reload func() error) func() error {
	return func() error {
		err := reload()
		if b := s.reloading.broker; err == nil && b != nil {
			b.EndRevoked()
		}
		return err
	}
}

// watchFiles looks for files that have changed until the server stops. A file counts as
// changed when it has been the same at two looks: one that is being written may be
// readable, and say less than it will.
func (s *Server) watchFiles() {
	interval := s.config.ReloadInterval
	if interval == 0 {
		interval = DefaultReloadInterval
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.lookAtFiles()
		case <-s.stop:
			return
		}
	}
}

func (s *Server) lookAtFiles() {
	s.reloading.mu.Lock()
	defer s.reloading.mu.Unlock()
	if s.reloading.audit {
		_ = s.reopenAudit()
	}
	for _, w := range s.reloading.watch {
		now := filestate.Of(w.Files())
		switch {
		case slices.EqualFunc(now, w.read, filestate.Same) && w.unread != "":
			_ = s.reload(w) // it is in the log
		case slices.EqualFunc(now, w.read, filestate.Same):
			w.changed = nil
		case !slices.EqualFunc(now, w.changed, filestate.Same):
			w.changed = now
		default:
			_ = s.reload(w) // it is in the log
		}
	}
}

// attachReloading has the clients of the broker, which is new, be judged by what is read again from
// now on. On a node of a cluster the server may have followed for weeks: what has changed
// meanwhile is read first. What cannot be read stays as it was, as when it changes later.
func (s *Server) attachReloading() {
	s.reloading.mu.Lock()
	defer s.reloading.mu.Unlock()
	s.reloading.broker = s.broker
	if s.reloading.adjusted != nil {
		s.adjust(*s.reloading.adjusted)
	}
	if s.config.Replicated == nil {
		return
	}
	for _, w := range s.reloading.watch {
		if !slices.EqualFunc(filestate.Of(w.Files()), w.read, filestate.Same) {
			_ = s.reload(w) // it is in the log
		}
	}
}

// startReloading begins to watch the files of the configuration, which were read when
// they looked as s.reloading has noted.
func (s *Server) startReloading() {
	if !s.Reloads() {
		return
	}
	s.serving.Add(1)
	go func() {
		defer failstop.End(s.log, "the look at the configuration's files")
		s.watchFiles()
		s.serving.Done()
	}()
}

// addReloader notes how the files look that a reloader reads.
func (s *Server) addReloader(r Reloader) {
	s.reloading.watch = append(s.reloading.watch, &watched{Reloader: r, read: filestate.Of(r.Files())})
}

// openConfiguration reads the policy file, if there is one, makes the permissions of it,
// and notes what is to be read again.
func (s *Server) openConfiguration() error {
	for _, r := range s.config.Reload {
		s.addReloader(r)
	}
	file := s.config.Policy
	if file == "" {
		if s.config.Login.Webhook.URL != "" && s.config.May == nil {
			s.config.May = policy.NewGuard(policy.Open()) // answers may have rules
		}
		return nil
	}
	if s.config.May != nil {
		return errors.New("there are a policy file and other permissions; give one of them")
	}
	guard := policy.NewGuard(nil)
	reload := func() error {
		p, err := policy.Read(file)
		if err != nil {
			return err
		}
		for _, w := range p.Warnings {
			s.log.Warn("the policy allows what may be a mistake", "line", w.In(file))
		}
		guard.Use(p)
		return nil
	}
	s.addReloader(Reloader{Name: "policy", Files: func() []string { return []string{file} }, Reload: reload})
	s.config.May = guard
	return reload()
}

var _ access.Permissions = (*policy.Guard)(nil)
