package memory

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// How the process's memory is shared out.
//
// The maximum is what the process may take of the machine: all of it, as the
// kernel counts it. From that go
//
//	fixedBytes   memtables and block cache of Pebble (104 MiB at the most), the
//	             log's buffers, code, stacks of the goroutines that always run
//	a third      what Go's heap holds beyond the bytes that are in use: garbage
//	             since the last collection, size classes, pools of buffers
//	             between two clients, messages that a turn works on
//
// and the rest is the Pool's. Go's memory limit (GOMEMLIMIT) is the maximum less
// what is outside its heap, so that the collector works harder when the heap
// comes near it, and costs nothing before.
const (
	fixedBytes = 112 << 20

	// MinMaximum is the least that a process may be given: with less, Pebble alone
	// would take it.
	MinMaximum = 128 << 20
)

// PoolOf gives the size of the Pool of a process that may take maximum bytes.
func PoolOf(maximum int64) int64 {
	return max(maximum-fixedBytes, maximum/4) / 3 * 2
}

// unlimited is from where on a cgroup's limit means that it has none.
const unlimited = 1 << 60

// Maximum gives the memory that the process should take at most, and where the
// figure comes from: nine tenths of the limit of its cgroup (of version 2 or 1,
// or of one above), or three quarters of the machine's memory if that is less.
// root is the file system's, os.DirFS("/").
func Maximum(root fs.FS) (bytes int64, source string, err error) {
	machine, err := machineMemory(root)
	if err != nil {
		return 0, "", err
	}
	bytes, source = machine/4*3, "three quarters of the machine's memory"
	if limit := cgroupLimit(root); limit > 0 && limit/10*9 < bytes {
		bytes, source = limit/10*9, "nine tenths of the cgroup's limit"
	}
	return max(bytes, MinMaximum), source, nil
}

// Available is how many bytes of memory the machine has, or the process's cgroup allows, if
// that is less; 0: the system does not say.
func Available(root fs.FS) int64 {
	machine, err := machineMemory(root)
	if err != nil {
		return 0
	}
	if limit := cgroupLimit(root); limit > 0 {
		return min(machine, limit)
	}
	return machine
}

func machineMemory(root fs.FS) (int64, error) {
	info, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("this system does not say how much memory it has: %w", err)
	}
	for line := range strings.Lines(string(info)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "MemTotal:" && fields[2] == "kB" {
			kb, err := strconv.ParseInt(fields[1], 10, 64)
			if err == nil && kb > 0 {
				return kb << 10, nil
			}
		}
	}
	return 0, errors.New("/proc/meminfo has no MemTotal")
}

// cgroupLimit gives the least limit of the process's cgroup and of those above
// it, 0 if there is none.
func cgroupLimit(root fs.FS) (least int64) {
	groups, err := root.Open("proc/self/cgroup")
	if err != nil {
		return 0
	}
	defer groups.Close()
	for lines := bufio.NewScanner(groups); lines.Scan(); {
		// hierarchy:controllers:path
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		dir, file := "sys/fs/cgroup", "memory.max"
		if parts[1] != "" {
			if !contains(parts[1], "memory") {
				continue
			}
			dir, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// A container often sees its own group as the root of the file system,
		// and its path as the host names it: then the files below are missing,
		// and the one at the root counts.
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			limit := readLimit(root, path.Join(dir, at, file))
			if limit > 0 && (least == 0 || limit < least) {
				least = limit
			}
			if at == "/" {
				break
			}
		}
	}
	return least
}

func contains(list, name string) bool {
	for entry := range strings.SplitSeq(list, ",") {
		if entry == name {
			return true
		}
	}
	return false
}

// readLimit gives 0 for a file that is missing or says "max".
func readLimit(root fs.FS, name string) int64 {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || limit >= unlimited {
		return 0
	}
	return limit
}
