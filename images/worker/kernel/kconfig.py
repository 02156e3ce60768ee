"""Checks ``/kernel/config.gz`` of a kernel image: can a zone run on the kernel.

The check is no protection, because an image may lie. It refuses an unfit kernel with a reason, instead of a
zone that does not boot.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Set

from daemonkit.faults import Refused

LIMIT_BYTES = 1 << 20
_PLAIN_BYTES = 8 << 20
_READ = "read kernel image"
_SET = re.compile(rb"^CONFIG_([A-Z0-9_]{1,80})=([ym])$", re.MULTILINE)

NEEDED = (
    "XEN",
    "XEN_BLKDEV_FRONTEND",
    "XEN_NETDEV_FRONTEND",
    "XEN_GRANT_DEV_ALLOC",
    "XEN_DEV_EVTCHN",
    "NET_9P",
    "9P_FS",
    "SQUASHFS",
    "OVERLAY_FS",
    "DEVTMPFS",
    "TMPFS",
    "BLK_DEV_INITRD",
)
"""Needed in a zone's kernel, built in or as modules."""

BEFORE_ADDONS = ("XEN_BLKDEV_FRONTEND", "SQUASHFS")
"""Needed to reach the modules in addons.squashfs at all."""


def check_kconfig(untrusted: bytes, subject: str, extras: Set[str]) -> None:
    """Raise Refused, naming missing options.  ``extras``: the present ones of initramfs, addons.squashfs."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        text = inflater.decompress(untrusted, _PLAIN_BYTES)
    except zlib.error as error:
        raise Refused(_READ, subject, f"/kernel/config.gz: {error}") from None
    if not inflater.eof:
        raise Refused(_READ, subject, f"/kernel/config.gz is cut off, or of more than {_PLAIN_BYTES} bytes")
    options = {name.decode(): value for name, value in _SET.findall(text)}
    absent = [name for name in NEEDED if name not in options]
    if absent:
        raise Refused(_READ, subject, f"its kernel was built without {', '.join(absent)}")
    if "initramfs" in extras:
        return
    reachable = "addons.squashfs" in extras
    modules = [name for name in (BEFORE_ADDONS if reachable else NEEDED) if options[name] == b"m"]
    if modules:
        cause = f"{', '.join(modules)} are modules, which the zone cannot reach"
        hint = "build them in, or add a /kernel/initramfs that has them"
        raise Refused(_READ, subject, cause, hint)
