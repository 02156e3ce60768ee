"""What disks cost a zone, and how its kernel's block driver is loaded so that it can afford them.

By default xen-blkfront keeps pages for every request that a disk could have in flight: 32 requests of 32
segments in each queue, and a queue for each vCPU.  Persistent grants are what it keeps them for, and dom0
then maps them for ever, too.  So zones have none; what is left is the ring and the driver's own tables.
The figures follow from the driver's source (drivers/block/xen-blkfront.c, fs/squashfs) and are rounded up;
tests/contract holds them against a zone that has all its disks mounted.
"""

from __future__ import annotations

from dataclasses import dataclass

from protect.model.room.host import DiskLimit

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_PLAIN_SEGMENTS = 11  # BLKIF_MAX_SEGMENTS_PER_REQUEST: what fits into a request itself
_INDIRECT_SEGMENTS = 32
_KERNEL_BYTES = 64 * _MIB
"""Kernel, agent and initramfs, which disks must leave alone."""
_DISK_BYTES = 320 * _KIB
_QUEUE_BYTES, _INDIRECT_QUEUE_BYTES = 96 * _KIB, 288 * _KIB
_MOUNT_BYTES = 768 * _KIB
"""A mounted squashfs: its caches, and a decompressor for each CPU."""
_FEWEST = 8
"""Every zone can have an image, of at most so many disks (protect.proto, Filesystem)."""
_BASE_NODES, _DISK_NODES, _QUEUE_NODES = 120, 11, 3
"""Nodes in xenstore of a zone without disks, of a disk, and of each queue of one that has several."""
_NAMES = 676
"""From xvda to xvdyz."""


@dataclass(frozen=True, slots=True)
class BlockFrontend:
    """How the zone's driver serves each of its disks."""

    queues: int
    segments: int

    @classmethod
    def of(cls, memory_bytes: int, vcpus: int) -> BlockFrontend:
        """What a zone of this size can afford."""
        if memory_bytes < _GIB:
            return cls(1, _PLAIN_SEGMENTS)
        return cls(min(vcpus, 2 if memory_bytes < 4 * _GIB else 4), _INDIRECT_SEGMENTS)

    @property
    def arguments(self) -> str:
        """Words of the kernel's command line, which the agent gives the driver when it is a module."""
        settings = {
            "max_queues": self.queues,
            "max_indirect_segments": self.segments,
            "feature_persistent": 0,
        }
        return " ".join(f"xen_blkfront.{name}={value}" for name, value in settings.items())

    @property
    def disk_bytes(self) -> int:
        """What one disk takes of the zone's memory, mounted."""
        queue = _QUEUE_BYTES if self.segments <= _PLAIN_SEGMENTS else _INDIRECT_QUEUE_BYTES
        return _DISK_BYTES + _MOUNT_BYTES + self.queues * queue

    @property
    def disk_nodes(self) -> int:
        """Nodes in xenstore, of which a guest has a quota."""
        return _DISK_NODES + (_QUEUE_NODES * self.queues if self.queues > 1 else 0)


def nodes_for(disks: int) -> int:
    """Nodes in xenstore of a zone of so many disks that have one queue each."""
    return _BASE_NODES + disks * _DISK_NODES


def disk_limit(memory_bytes: int, vcpus: int, nodes: int) -> DiskLimit:
    """For a zone of this size; ``nodes`` is the quota of a guest in xenstore."""
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
