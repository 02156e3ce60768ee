"""Memory that disks take of a zone, and driver parameters that keep it small.

By default xen-blkfront keeps pages for every request that a disk could have in flight: 32 requests of 32
segments in each queue, and a queue for each vCPU.  The driver keeps the pages for persistent grants, and dom0
then maps them for ever, too.  Zones therefore have no persistent grants; only the ring and the driver's own
tables remain.

The figures follow from the driver's source (drivers/block/xen-blkfront.c, fs/squashfs) and are rounded up;
tests/contract compares them with a zone that has all its disks mounted.
"""

from __future__ import annotations

from dataclasses import dataclass

from protect.model.capacity.host_resources import DiskLimit

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_PLAIN_SEGMENTS = 11  # BLKIF_MAX_SEGMENTS_PER_REQUEST: the segments in a request itself
_INDIRECT_SEGMENTS = 32
_KERNEL_BYTES = 64 * _MIB
"""Memory of kernel, agent and initramfs; not available to disks."""
_DISK_BYTES = 320 * _KIB
_QUEUE_BYTES, _INDIRECT_QUEUE_BYTES = 96 * _KIB, 288 * _KIB
_MOUNT_BYTES = 768 * _KIB
"""A mounted squashfs: its caches, and a decompressor for each CPU."""
_FEWEST = 8
"""Number of disks that every zone can have: the most disks of an image (protect.proto, Filesystem)."""
_BASE_NODES, _DISK_NODES, _QUEUE_NODES = 120, 11, 3
"""Nodes in xenstore: of a zone without disks, of a disk, and of each queue of a multi-queue disk."""
_NAMES = 676
"""Number of names from xvda to xvdyz."""


@dataclass(frozen=True, slots=True)
class BlockFrontend:
    """Parameters of the zone's disk driver, for each disk."""

    queues: int
    segments: int

    @classmethod
    def of(cls, memory_bytes: int, vcpus: int) -> BlockFrontend:
        """Parameters for a zone of this size."""
        if memory_bytes < _GIB:
            return cls(1, _PLAIN_SEGMENTS)
        return cls(min(vcpus, 2 if memory_bytes < 4 * _GIB else 4), _INDIRECT_SEGMENTS)

    @property
    def arguments(self) -> str:
        """Words of the kernel's command line; the agent passes them to a modular driver."""
        settings = {
            "max_queues": self.queues,
            "max_indirect_segments": self.segments,
            "feature_persistent": 0,
        }
        return " ".join(f"xen_blkfront.{name}={value}" for name, value in settings.items())

    @property
    def disk_bytes(self) -> int:
        """Bytes of the zone's memory for one mounted disk."""
        queue = _QUEUE_BYTES if self.segments <= _PLAIN_SEGMENTS else _INDIRECT_QUEUE_BYTES
        return _DISK_BYTES + _MOUNT_BYTES + self.queues * queue

    @property
    def disk_nodes(self) -> int:
        """Nodes in xenstore for one disk; a guest has a quota of nodes."""
        return _DISK_NODES + (_QUEUE_NODES * self.queues if self.queues > 1 else 0)


def nodes_for(disks: int) -> int:
    """Nodes in xenstore of a zone with so many single-queue disks."""
    return _BASE_NODES + disks * _DISK_NODES


def disk_limit(memory_bytes: int, vcpus: int, nodes: int) -> DiskLimit:
    """Disk limit of a zone of this size; ``nodes`` is a guest's quota in xenstore."""
    frontend = BlockFrontend.of(memory_bytes, vcpus)
    spare = max(0, memory_bytes - _KERNEL_BYTES) // 2
    by_memory = max(_FEWEST, spare // frontend.disk_bytes)
    by_nodes = max(0, nodes - _BASE_NODES) // frontend.disk_nodes
    bounds = (
        (
            by_memory,
            f"each takes {frontend.disk_bytes // _KIB} KiB of its kernel's memory, and of its"
            f" {memory_bytes // _MIB} MiB at most {spare // _MIB} are for disks",
        ),
        (by_nodes, f"each takes {frontend.disk_nodes} of its {nodes} nodes in xenstore"),
        (_NAMES, "there are no more names"),
    )
    return DiskLimit(*min(bounds))
