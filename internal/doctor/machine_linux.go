package doctor

import (
	"time"

	"golang.org/x/sys/unix"
)

// ProbeClock asks the kernel whether something synchronizes its clock.
func ProbeClock() Synchronization {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return Synchronization{}
	}
	const timeError, unsynced = 5, 0x40 // TIME_ERROR and STA_UNSYNC of adjtimex(2)
	return Synchronization{Known: true, Synced: state != timeError && t.Status&unsynced == 0, Error: time.Duration(t.Maxerror) * time.Microsecond}
}

// ProbeFileSystem gives the kind of the file system that dir is on; empty: unknown or
// nothing special.
func ProbeFileSystem(dir string) string {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return ""
	}
	return fileSystems[uint32(s.Type)] // the field's type differs between processors
}

// fileSystems are kinds by their magic numbers, statfs(2).
var fileSystems = map[uint32]string{
	unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs",
	unix.NFS_SUPER_MAGIC: "nfs", unix.V9FS_MAGIC: "9p", unix.FUSE_SUPER_MAGIC: "fuse", unix.SMB2_SUPER_MAGIC: "cifs", 0xff534d42: "cifs", 0x00c36400: "ceph",
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay",
}
