"""``/kernel/metadata`` of a kernel image: lines of KEY=VALUE, in the format of linux-kernel-oci by Edera.

::

    KERNEL_ARCH=x86_64
    KERNEL_VERSION=6.12.4
    KERNEL_FLAVOR=zone
    KERNEL_CONFIG=sha256:...

Empty lines, lines that begin with # and unknown keys are ignored.  No key is required; a given architecture
must be this machine's.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass

from daemonkit.faults import Refused

PATH = "/kernel/metadata"
LIMIT_BYTES = 64 << 10
_MOST_LINES = 256
_LINE = re.compile(r"([A-Z][A-Z0-9_]{0,63})=([ -~]{0,256})")
_READ = "read kernel image"
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Metadata:
    """A kernel image's own description; "" for a missing key."""

    version: str = ""
    flavor: str = ""
    arch: str = ""


def parse(untrusted: bytes, subject: str) -> Metadata:
    """Parse the file; raises Refused, with the line, if malformed or for another machine."""
    if len(untrusted) > LIMIT_BYTES:
        raise Refused(_READ, subject, f"{PATH} has {len(untrusted)} bytes, more than {LIMIT_BYTES}")
    lines = untrusted.decode("utf-8", "replace").split("\n")
    if len(lines) > _MOST_LINES:
        raise Refused(_READ, subject, f"{PATH} has more than {_MOST_LINES} lines")
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            raise Refused(_READ, subject, f"line {number} of {PATH} is not KEY=VALUE")
        if found[1] in values:
            raise Refused(_READ, subject, f"line {number} of {PATH} says {found[1]} once more")
        values[found[1]] = found[2]
    said = Metadata(*(values.get(f"KERNEL_{key}", "") for key in ("VERSION", "FLAVOR", "ARCH")))
    if said.arch and _ARCHITECTURES.get(said.arch, said.arch) != platform.machine():
        raise Refused(_READ, subject, f"it is for {said.arch}, and this machine is {platform.machine()}")
    return said
