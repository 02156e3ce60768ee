"""Where mounts are in a container."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from cri.oci.values import Json


def place(container_path: str) -> str:
    """One spelling for each place: ``//a/./b/`` is ``/a/b``."""
    return posixpath.normpath("/" + container_path.strip("/"))


def arranged(usual: Iterable[Json], asked: Iterable[Json]) -> list[Json]:
    """The usual mounts without those in whose place, or under whose /dev, others are asked for; then those.

    What is nearer to the root comes first, so that nothing hides what is below it.
    """
    wanted = list(asked)
    taken = {str(mount["destination"]) for mount in wanted}
    kept = [mount for mount in usual if not _replaced(str(mount["destination"]), taken)]
    return sorted([*kept, *wanted], key=_depth)


def _replaced(destination: str, taken: set[str]) -> bool:
    return destination in taken or ("/dev" in taken and destination.startswith("/dev/"))


def _depth(mount: Json) -> int:
    return str(mount["destination"]).count("/")
