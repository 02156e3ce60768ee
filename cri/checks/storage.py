"""Reads limits on the containers' disk use from the annotations of their pod.

Kubernetes does not tell runtimes a container's limit of ephemeral-storage, nor an emptyDir's sizeLimit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from cri.config import EMPTY_DIRS, EPHEMERAL_STORAGE
from daemonkit.faults import Invalid
from daemonkit.quantity import within

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MOST_BYTES = 2**50
_MOST_ENTRIES = 256


def check_storage(notes: Mapping[str, str]) -> None:
    """Invalid: an annotation is malformed."""
    writable_layers(notes)
    empty_dirs(notes)


def writable_layers(notes: Mapping[str, str]) -> Mapping[str, int]:
    """Limits in bytes of the writable layers, by container name."""
    return _limits(notes, EPHEMERAL_STORAGE)


def empty_dirs(notes: Mapping[str, str]) -> Mapping[str, int]:
    """Sizes in bytes of emptyDirs on disk, by volume name."""
    return _limits(notes, EMPTY_DIRS)


def _limits(notes: Mapping[str, str], key: str) -> Mapping[str, int]:
    if key not in notes:
        return MappingProxyType({})
    found: dict[str, int] = {}
    entries = notes[key].split(",", _MOST_ENTRIES)
    try:
        if len(entries) > _MOST_ENTRIES:
            raise ValueError(f"more than {_MOST_ENTRIES} limits")
        for entry in entries:
            name, _, size = entry.strip().partition("=")
            if not _NAME.fullmatch(name) or name in found:
                raise ValueError(f"{entry!r:.80} is not NAME=SIZE, or names something again")
            found[name] = within(size, _MOST_BYTES)
    except ValueError as error:
        raise Invalid("read annotation", key, str(error), 'e.g. "web=1Gi,log=64Mi"') from None
    return found
