"""Limits on the cost of an image; the defaults are safe for a node with hostile images."""

from __future__ import annotations

from dataclasses import dataclass, fields

MIB = 1 << 20
GIB = 1 << 30

OPTIONAL = frozenset({"ratio", "entries", "index_bytes", "cpu_seconds"})
"""Keys of ImageLimits for which 0 means no limit."""


@dataclass(frozen=True)
class ImageLimits:
    """Limits on the cost of an image; exceeding a limit fails the pull with RESOURCE_EXHAUSTED."""

    manifest_bytes: int = 4 * MIB
    config_bytes: int = 4 * MIB
    layers: int = 512
    # Compressed size of a layer, from the manifest.
    layer_bytes: int = 16 * GIB
    # All layers unpacked, holes of sparse files included.
    unpacked_bytes: int = 64 * GIB
    # Memory to read the entries of all layers: a few hundred bytes for each, plus the names.
    memory_bytes: int = 512 * MIB
    # Directory lookups to merge an image's entries, beyond STEPS_PER_ENTRY for each entry.
    path_steps: int = 20_000_000
    # CPU time to read a layer, or to copy the files of a filesystem; 0: no limit.
    cpu_seconds: int = 900
    # Optional further limits; 0: none. Ratio of unpacked to compressed bytes of a layer (checked above
    # unpacked_floor_bytes only); entries of all layers, whiteouts included; bytes of their names, link
    # targets and attributes.
    ratio: int = 0
    unpacked_floor_bytes: int = 256 * MIB
    entries: int = 0
    index_bytes: int = 0
    # A PAX or GNU long-name header.
    header_bytes: int = MIB
    # Size limit of /etc/passwd and /etc/group; smaller files are stored beside the filesystem.
    account_file_bytes: int = MIB

    def __post_init__(self) -> None:
        negative = [each.name for each in fields(self) if getattr(self, each.name) < 0]
        if negative:
            # Imported here: a worker does not need the configuration code.
            from daemonkit.config import at_least

            at_least(0, self, *negative)
