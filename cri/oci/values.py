"""What the parts of an OCI configuration share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CREATE = "create container"
Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Filter:
    """Of system calls: ``linux.seccomp``, and the same compiled (see ``seccomp_bpf``) or ""."""

    profile: Json
    program: str = ""
