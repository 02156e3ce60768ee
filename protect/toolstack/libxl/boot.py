"""Boot files of a zone: kernel, initramfs, command line, and the least memory to boot with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Invalid, Missing
from protect.model.toolstack import Mode
from protect.toolstack.libxl.kernel import (
    boot_modes,
    contains,
    has_user_namespaces,
    hotplugs_memory,
    kernel_version,
    unpacked_kernel,
)
from protect.toolstack.libxl.settings import LibxlSettings

OWN = ("XENPOD_CHANNEL=vchan", "XENPOD_CLOCK=own", "XENPOD_SEED=xenstore")
"""Environment of every agent in a domain."""
_PARTS = (
    "make its initramfs (xenpod-guest does when it is configured; in a checkout `make -C zone initramfs`)"
)
_BOOT = Path("/boot")
_CMDLINE_LIMIT = 1023  # MAX_GUEST_CMDLINE of xen.h, with its NUL
_SLACK_BYTES = 32 << 20  # with half as much Debian's kernels sometimes fail to boot
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_VALUE = re.compile(r"[A-Za-z0-9_./:=-]{0,255}")


@dataclass(frozen=True, slots=True)
class Boot:
    """Files for the domain builder; ``minimum_bytes`` is the least memory a zone can boot with.

    ``user_namespaces``: the kernel supports them; ``modes``: the modes that the kernel can boot in.
    """

    kernel: Path
    initramfs: Path
    minimum_bytes: int
    user_namespaces: bool = False
    modes: frozenset[Mode] = frozenset(Mode)
    volumes: bool = True
    """Whether the kernel has 9P, built in or as a module of the initramfs."""
    hotplug: bool = False
    """Whether the kernel's balloon hot-plugs memory."""

    @classmethod
    def of(cls, kernel: Path, initramfs: Path) -> Boot:
        """Describe an unpacked kernel."""
        return cls(
            kernel,
            initramfs,
            needs(kernel, initramfs),
            has_user_namespaces(kernel),
            boot_modes(kernel),
            contains(kernel, b"9P2000.L") or contains(initramfs, b"lib/modules/9p.ko"),
            hotplugs_memory(kernel),
        )


def find_boot(settings: LibxlSettings, guest_dir: Path, cache: Path) -> Boot:
    """Locate the files and unpack the kernel.  Missing and Invalid carry a hint."""
    source = settings.kernel or _newest(guest_dir)
    initramfs = settings.initramfs or guest_dir / f"initramfs-{kernel_version(source)}.cpio"
    if not initramfs.is_file():
        hint = f"{_PARTS}, or set libxl.initramfs"
        raise Missing("find initramfs", str(initramfs), "no such file", hint)
    return Boot.of(unpacked_kernel(source, cache), initramfs)


def needs(kernel: Path, initramfs: Path) -> int:
    """Bytes needed to boot: both files are loaded, and the unpacked initramfs needs its size once more."""
    return kernel.stat().st_size + 2 * initramfs.stat().st_size + _SLACK_BYTES


def _newest(guest_dir: Path) -> Path:
    versions = [file.stem.removeprefix("initramfs-") for file in guest_dir.glob("initramfs-*.cpio")]
    kernels = [_BOOT / f"vmlinuz-{version}" for version in versions]
    present = [kernel for kernel in kernels if kernel.is_file()]
    if not present:
        cause = f"none in {_BOOT} that {guest_dir} has an initramfs for"
        hint = f"install linux-image-amd64, {_PARTS}, or set libxl.kernel"
        raise Missing("find zone kernel", "", cause, hint)
    # Of one version's flavours take the plain kernel: Debian's "cloud" lacks 9p, and therefore volumes.
    return max(
        present, key=lambda path: ([int(part) for part in re.findall(r"\d+", path.name)], -len(path.name))
    )


def command_line(arguments: str, environment: Mapping[str, str]) -> str:
    """The kernel's command line; the kernel passes unknown words to the agent as environment."""
    words = ["console=hvc0", "panic=1", *arguments.split(), *OWN]
    for name, value in environment.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise Invalid(
                "create domain", f"environment {name}={value}", "only [A-Za-z0-9_./:=-] can be passed"
            )
        words.append(f"{name}={value}")
    text = " ".join(words)
    if len(text) > _CMDLINE_LIMIT:
        raise Invalid(
            "create domain", "", f"kernel command line of {len(text)} characters, {_CMDLINE_LIMIT} fit"
        )
    return text
