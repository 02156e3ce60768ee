"""Kernel interfaces among file systems: a file system without a device is an interface, or stores files."""

from pathlib import Path

from protect.volumes.source import COMMANDING

_STORAGE = frozenset(
    "9p afs aufs autofs bcachefs beegfs btrfs ceph cifs coda ecryptfs fuse fuseblk glusterfs gpfs hugetlbfs"
    " lustre nfs nfs4 orangefs overlay pvfs2 ramfs rootfs shiftfs smb3 tmpfs ubifs vboxsf virtiofs vmhgfs"
    " zfs".split()
)
"""Memory, or storage of a tenant."""
_NOWHERE = frozenset(
    "anon_inodefs bdev cxl dax devmem drm dmabuf guest_memfd iomem pidfs pipefs secretmem sockfs".split()
)
"""File systems of the kernel itself: they cannot be mounted."""


def test_each_kind_of_this_kernel_is_known() -> None:
    lines = Path("/proc/filesystems").read_text().splitlines()
    without_device = {line.split()[1] for line in lines if line.startswith("nodev")}
    assert without_device - COMMANDING - _STORAGE - _NOWHERE == set()


def test_commanding_file_systems_are_neither_storage_nor_unmountable() -> None:
    assert not COMMANDING & (_STORAGE | _NOWHERE)
    assert {"resctrl", "cpuset", "smackfs", "binder", "functionfs"} <= COMMANDING
