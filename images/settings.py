"""The settings of images; every default is safe for a node that runs strangers' images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from daemonkit.config import Bytes, Seconds, absolute, at_least, longer_than_nothing
from images.bounds.limits import GIB, MIB, ImageLimits
from images.globs import patterns

LEVELS: Mapping[str, int] = {"zstd": 22, "gzip": 9, "xz": 0, "lz4": 0}
"""Compressions that zone kernels can read, with the highest level of each; 0: it has no levels."""


@dataclass(frozen=True)
class PolicySettings:
    """Which images may be pulled: patterns of names (deny comes first, no allow allows all), verifiers."""

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
    """What an operator can set for kernels of zones (``[kernels]`` in cri.toml).

    allow: names of images that pods may choose by annotation; none by default, since the host's domain
    builder reads a kernel before any zone runs.  Kernels that a runtime handler names are always allowed.
    The sizes bound each file that is taken out of a kernel image, in bytes.
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

    state_dir: everything durable lies here (blobs, filesystem images, the index).
    certs_dir: containerd's ``certs.d`` convention; absent is fine.
    """

    state_dir: Path
    certs_dir: Path = Path("/etc/containerd/certs.d")
    compression: str = "zstd"
    compression_level: int = 1
    # A compressed layer of at least so many bytes becomes a filesystem of its own, which other images may
    # share; smaller ones are put together with the next.
    part_bytes: int = 4 * MIB
    # Networks and hosts with private addresses that a registry elsewhere may send us to.
    private_targets: tuple[str, ...] = ()
    downloads_per_image: int = 3
    conversions: int = 2
    connect_seconds: float = 10.0
    # Longest silence of a registry in the middle of an answer.
    stall_seconds: float = 60.0
    # Longest time for a manifest or a configuration, its token and its retries included.
    document_seconds: float = 60.0
    pull_seconds: float = 3600.0
    # How long a pull may make no progress at all, on any layer or filesystem.
    pull_stall_seconds: float = 300.0
    # Fruitless tries of one request at one host; the first backoff, and the longest one.
    tries_per_host: int = 3
    retry_seconds: float = 0.5
    retry_most_seconds: float = 20.0
    # Layers of pulls that did not come to their end: how many bytes of them are kept, and for how long each.
    unfinished_bytes: int = 8 * GIB
    unfinished_seconds: float = 3600.0
    # Patterns of names that garbage collection leaves alone.
    pinned: tuple[str, ...] = ()
    policy: PolicySettings = field(default_factory=PolicySettings)
    limits: ImageLimits = field(default_factory=ImageLimits)
    kernels: KernelSettings = KernelSettings()
