package memory

import (
	"testing"
	"testing/fstest"
)

func TestMaximumIsTheCgroupsOrTheMachines(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	meminfo := "MemTotal:        8388608 kB\nMemFree:  123 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroup":        {nil, 6 * gib},
		"cgroup v2":        {map[string]string{"proc/self/cgroup": "0::/system.slice/a\n", "sys/fs/cgroup/system.slice/a/memory.max": "1073741824\n"}, gib / 10 * 9},
		"cgroup v2, above": {map[string]string{"proc/self/cgroup": "0::/b/a\n", "sys/fs/cgroup/b/a/memory.max": "max\n", "sys/fs/cgroup/b/memory.max": "1073741824\n"}, gib / 10 * 9},
		"in a container":   {map[string]string{"proc/self/cgroup": "0::/host/name\n", "sys/fs/cgroup/memory.max": "1073741824\n"}, gib / 10 * 9},
		"cgroup v1":        {map[string]string{"proc/self/cgroup": "5:cpu:/x\n4:rdma,memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1073741824\n"}, gib / 10 * 9},
		"v1 without limit": {map[string]string{"proc/self/cgroup": "4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712\n"}, 6 * gib},
		"above the machine": {map[string]string{"proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "17179869184\n"}, 6 * gib},
		"next to nothing": {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "4096\n"}, MinMaximum},
	} {
		root := fstest.MapFS{"proc/meminfo": {Data: []byte(meminfo)}}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		got, source, err := Maximum(root)
		if err != nil || got != c.want {
			t.Errorf("%s: maximum %d (%s), %v; want %d", name, got, source, err, c.want)
		}
	}
}

func TestMaximumNeedsASystemThatSays(t *testing.T) {
	t.Parallel()
	for _, root := range []fstest.MapFS{{}, {"proc/meminfo": {Data: []byte("MemTotal: lots\n")}}} {
		if got, _, err := Maximum(root); err == nil {
			t.Errorf("maximum %d without a figure of the system's", got)
		}
	}
}

func TestPoolLeavesRoomForTheRest(t *testing.T) {
	t.Parallel()
	for _, maximum := range []int64{MinMaximum, 256 << 20, 1 << 30, 64 << 30} {
		if pool := PoolOf(maximum); pool < maximum/8 || pool > maximum/3*2 {
			t.Errorf("a process of %d bytes has a pool of %d", maximum, pool)
		}
	}
}
