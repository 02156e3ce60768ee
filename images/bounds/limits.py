"""What one image may cost at most; the defaults are safe for a node that runs strangers' images."""

from __future__ import annotations

from dataclasses import dataclass, fields

MIB = 1 << 20
GIB = 1 << 30

OPTIONAL = frozenset({"ratio", "entries", "index_bytes", "cpu_seconds"})
"""Keys of ImageLimits that are no limit when they are 0."""


@dataclass(frozen=True)
class ImageLimits:
    """Limits on what one image may cost; exceeding one fails the pull with RESOURCE_EXHAUSTED."""

    manifest_bytes: int = 4 * MIB
    config_bytes: int = 4 * MIB
    layers: int = 512
    # One compressed layer, as its manifest declares it.
    layer_bytes: int = 16 * GIB
    # All layers unpacked, holes of sparse files included.
    unpacked_bytes: int = 64 * GIB
    # What reading the entries of all layers may take in memory: a few hundred bytes for each, and its names.
    memory_bytes: int = 512 * MIB
    # Directory lookups to merge an image's entries, beyond STEPS_PER_ENTRY for each of them.
    path_steps: int = 20_000_000
    # CPU time to read one layer, or to copy the files of one filesystem; 0: no limit.
    cpu_seconds: int = 900
    # Further limits for those who want them; 0: none. Unpacked over compressed bytes of one layer (checked
    # above unpacked_floor_bytes only); entries of all layers, whiteouts included; bytes of their names, link
    # targets and attributes.
    ratio: int = 0
    unpacked_floor_bytes: int = 256 * MIB
    entries: int = 0
    index_bytes: int = 0
    # One PAX or GNU long-name header.
    header_bytes: int = MIB
    # /etc/passwd and /etc/group are kept beside the filesystem up to this size.
    account_file_bytes: int = MIB

    def __post_init__(self) -> None:
        negative = [each.name for each in fields(self) if getattr(self, each.name) < 0]
        if negative:
            # Imported here: a worker has no use for all that reads a configuration.
            from daemonkit.config import at_least

            at_least(0, self, *negative)
