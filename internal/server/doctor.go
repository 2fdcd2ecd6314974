package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/doctor"
	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/metrics"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// doctorPath is where the server examines itself and its machine: GET, the answer is a list
// of doctor.Finding as JSON.
const doctorPath = "/v1/doctor"

// fsyncProbe is how long the time of an fsync is measured on a machine where no server runs.
const fsyncProbe = 2 * time.Second

// Doctor has the server that runs on dataDir examine itself and its machine. The error is
// ErrNotRunning if no server can be reached.
func Doctor(ctx context.Context, dataDir string) (all []doctor.Finding, err error) {
	err = askJSON(ctx, dataDir, doctorPath, &all)
	return all, err
}

func (s *Server) serveDoctor(w http.ResponseWriter, _ *http.Request) {
	_ = json.NewEncoder(w).Encode(s.examine())
}

// examine looks at the server as it runs.
func (s *Server) examine() []doctor.Finding {
	all := []doctor.Finding{doctor.Serving(s.unready())}
	all = append(all, doctor.Descriptors(s.descriptors.limit, s.room(), s.wanted))
	store := s.engine.Stats()
	all = append(all, doctor.Clock(doctor.ProbeClock(), time.Duration(store.AheadMs)*time.Millisecond, cmp.Or(s.config.MaxClockSkew, engine.DefaultMaxSkew)))
	if r := s.config.Replicated; r != nil && r.Cluster != nil {
		c := r.Cluster.Clocks()
		all = append(all, doctor.NodeClock(len(c.Readings), c.Majority, c.Wrong, c.Ahead, c.Agree))
	}
	if free, reserve, known := s.journal.Free(); known {
		all = append(all, doctor.Disk(doctor.ProbeFileSystem(s.config.DataDir), free, reserve))
	}
	median, longest, count := quantiles(s.journal.Figures().Fsyncs)
	all = append(all, doctor.Fsync(median, longest, count, s.config.Durability == journal.Sync))
	all = append(all, examineMemory(s.config.MaxMemory))
	all = append(all, s.config.examineCertificates()...)
	for _, link := range s.bridges {
		all = append(all, doctor.Bridge(link.Name(), link.Connected(), link.Reason().String()))
	}
	return append(all, metrics.Fill(s.sources(), doctor.Bound)...)
}

// room is how many connections the descriptors leave room for.
func (s *Server) room() int {
	if s.descriptors.limit == 0 {
		return s.wanted
	}
	return s.descriptors.connections
}

// quantiles are the bounds of the buckets of the median and of the longest time.
func quantiles(h histogram.Snapshot) (median, longest time.Duration, count int64) {
	if h.Count == 0 {
		return 0, 0, 0
	}
	for i, cumulative := range h.Cumulative {
		if median == 0 && 2*cumulative >= h.Count {
			median = time.Duration(h.Bounds[i])
		}
		if cumulative == h.Count {
			return median, time.Duration(h.Bounds[i]), h.Count
		}
	}
	last := time.Duration(h.Bounds[len(h.Bounds)-1])
	return cmp.Or(median, last), last, h.Count
}

// Examine looks at this machine on behalf of a server with this configuration that does not
// run, or of a node of a cluster that runs and does not lead. It writes and removes a file in
// the data directory, or in the nearest directory above it that exists, to measure an fsync.
func (c *Config) Examine(runs bool) (all []doctor.Finding) {
	wanted := cmp.Or(c.Limits.MaxConnections, limits.Default().MaxConnections)
	limit, _ := sockets.DescriptorLimit()
	if d, err := divide(limit); err != nil {
		all = append(all, doctor.Refused("descriptors", err))
	} else {
		all = append(all, doctor.Descriptors(limit, cmp.Or(d.connections, wanted), wanted))
	}
	all = append(all, doctor.Clock(doctor.ProbeClock(), 0, cmp.Or(c.MaxClockSkew, engine.DefaultMaxSkew)))
	all = append(all, c.examineDisk()...)
	all = append(all, examineMemory(c.MaxMemory))
	if !runs {
		all = append(all, c.examineListeners()...)
	}
	return append(all, c.examineCertificates()...)
}

// examineDisk looks at the disk that the data is on, or will be.
func (c *Config) examineDisk() (all []doctor.Finding) {
	dir, err := existing(c.DataDir)
	if err != nil {
		return []doctor.Finding{doctor.Refused("disk", err)}
	}
	usage, err := vfs.Default.GetDiskUsage(dir)
	space := datadir.NewSpace(vfs.Default, dir, c.DiskReserve, nil)
	reserve, known := space.Reserve()
	refused := space.CheckReserve()
	if wanted, _ := filepath.Abs(c.DataDir); refused == nil && dir != wanted { // there is no data yet
		refused = space.CheckRoom()
	}
	if refused != nil {
		all = append(all, doctor.Refused("disk", refused))
	} else if err == nil && known {
		all = append(all, doctor.Disk(doctor.ProbeFileSystem(dir), int64(usage.AvailBytes), reserve))
	}
	median, longest, count, err := doctor.ProbeFsync(dir, fsyncProbe)
	if err != nil && !datadir.IsNoRoom(err) { // of a full disk it is said above
		return append(all, doctor.Refused("fsync", err))
	}
	return append(all, doctor.Fsync(median, longest, count, c.Durability == journal.Sync))
}

// existing is dir, or the nearest directory above it that exists.
func existing(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	for err == nil {
		info, failed := os.Stat(dir)
		switch {
		case failed == nil && info.IsDir():
			return dir, nil
		case failed == nil:
			return "", fmt.Errorf("%s is not a directory", dir)
		case !errors.Is(failed, fs.ErrNotExist):
			return "", failed
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// examineMemory judges the maximum that is configured; 0: none is.
func examineMemory(maximum int64) doctor.Finding {
	machine, source := memory.Available(os.DirFS("/")), "--max-memory"
	if maximum == 0 {
		maximum, source, _ = memory.Maximum(os.DirFS("/"))
	}
	return doctor.Memory(maximum, machine, source)
}

// examineListeners looks whether the addresses are free.
func (c *Config) examineListeners() (all []doctor.Finding) {
	configs, err := c.ListenConfigs()
	if err != nil {
		return []doctor.Finding{doctor.Refused("listeners", err)}
	}
	var free []string
	addresses := []string{}
	for _, l := range configs {
		addresses = append(addresses, l.URL.Host)
	}
	if c.Admin != "" {
		addresses = append(addresses, c.Admin)
	}
	for _, address := range addresses {
		l, err := sockets.Listen(address)
		if err != nil {
			all = append(all, doctor.Refused("listeners", err))
			continue
		}
		free = append(free, address)
		l.Close()
	}
	if len(free) > 0 {
		all = append(all, doctor.Fine("listeners", strings.Join(free, " ")+" can be listened on"))
	}
	return all
}

// examineCertificates looks at the files of all listeners with TLS, and of a node.
func (c *Config) examineCertificates() (all []doctor.Finding) {
	configs, err := c.ListenConfigs()
	if err != nil {
		return nil // examineListeners says it
	}
	files := map[certs.Files]bool{}
	if n := c.Cluster; n.Cert != "" {
		all = examineFiles(certs.Files{Cert: n.Cert, Key: n.Key, ClientCA: n.CA})
	}
	for _, l := range configs {
		if l.URL.IsTLS() && !files[l.TLS] {
			files[l.TLS] = true
			all = append(all, examineFiles(l.TLS)...)
		}
	}
	return all
}

func examineFiles(files certs.Files) (all []doctor.Finding) {
	validities, err := files.Validities()
	if err != nil {
		return []doctor.Finding{doctor.Refused("certificates", err)}
	}
	for _, v := range validities {
		all = append(all, doctor.Certificate(v.Name, v.From, v.Until, time.Now()))
	}
	return all
}
