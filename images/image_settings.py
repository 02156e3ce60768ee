"""The settings of images; every default is safe for a node with hostile images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from daemonkit.config import Bytes, Seconds, absolute, at_least, longer_than_nothing
from images.bounds.limits import GIB, MIB, ImageLimits
from images.globs import patterns

LEVELS: Mapping[str, int] = {"zstd": 22, "gzip": 9, "xz": 0, "lz4": 0}
"""Compressions that zone kernels can read, with the highest level of each; 0: without levels."""


@dataclass(frozen=True)
class PolicySettings:
    """The policy for pulls: patterns of names (deny comes first, no allow allows all), and verifiers."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    verifier_dir: Path | None = None
    verifier_timeout: Seconds = Seconds(10.0)

    def __post_init__(self) -> None:
        patterns(self, "allow", "deny")
        absolute(self, "verifier_dir")
        longer_than_nothing(self, "verifier_timeout")


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """An operator's settings for kernels of zones (``[kernels]`` in cri.toml).

    allow: names of images that pods may choose by annotation; none by default, because the host's domain
    builder reads a kernel before any zone runs.  Kernels of a runtime handler are always allowed. The sizes
    limit each file of a kernel image, in bytes.
    """

    allow: tuple[str, ...] = ()
    image_bytes: Bytes = Bytes(128 * MIB)
    addons_bytes: Bytes = Bytes(1024 * MIB)
    initramfs_bytes: Bytes = Bytes(64 * MIB)

    def __post_init__(self) -> None:
        patterns(self, "allow")
        at_least(1, self, "image_bytes", "addons_bytes", "initramfs_bytes")


@dataclass(frozen=True)
class ImageSettings:
    """The image part's configuration.

    state_dir: holds all durable state (blobs, filesystem images, the index). certs_dir: containerd's
    ``certs.d`` convention; may be missing.
    """

    state_dir: Path
    certs_dir: Path = Path("/etc/containerd/certs.d")
    compression: str = "zstd"
    compression_level: int = 1
    # A compressed layer of at least this size in bytes becomes a filesystem of its own, for other images to
    # share; smaller layers are joined with the next.
    part_bytes: int = 4 * MIB
    # Private networks and hosts that a registry elsewhere may redirect pulls to.
    private_targets: tuple[str, ...] = ()
    downloads_per_image: int = 3
    conversions: int = 2
    connect_seconds: float = 10.0
    # Longest silence of a registry in the middle of an answer.
    stall_seconds: float = 60.0
    # Longest time for a manifest or a configuration, token and retries included.
    document_seconds: float = 60.0
    pull_seconds: float = 3600.0
    # How long a pull may make no progress at all, on any layer or filesystem.
    pull_stall_seconds: float = 300.0
    # Failed attempts for each request at a host; the first backoff, and the longest.
    tries_per_host: int = 3
    retry_seconds: float = 0.5
    retry_most_seconds: float = 20.0
    # Layers of unfinished pulls: total bytes to keep, and the longest time for each.
    unfinished_bytes: int = 8 * GIB
    unfinished_seconds: float = 3600.0
    # Patterns of names exempt from garbage collection.
    pinned: tuple[str, ...] = ()
    policy: PolicySettings = field(default_factory=PolicySettings)
    limits: ImageLimits = field(default_factory=ImageLimits)
    kernels: KernelSettings = KernelSettings()
