"""Values that the parts of an OCI configuration share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Filter:
    """A seccomp filter: ``linux.seccomp``, and the same compiled (see ``seccomp_bpf``) or ""."""

    profile: Json
    program: str = ""


@dataclass(frozen=True, slots=True)
class RootImage:
    """The facts about an image that a container needs."""

    id: str
    """``sha256:...`` of its config."""
    reference: str
    """``repository@sha256:...`` if known, else the id."""
    name: str
    """The name for people: the tag, if any, else the reference."""
    filesystems: tuple[str, ...]
    """The absolute paths of its filesystem images on the host, lowest first."""
    type: str
    """The type of each filesystem image: ``squashfs`` or ``erofs``."""
    env: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    user: str = ""
    working_dir: str = ""
    stop_signal: str = ""
    volumes: tuple[str, ...] = ()
    """The paths of its VOLUMEs, as the image has them."""
    passwd: str = ""
    """The text of the image's /etc/passwd, "" if missing; hostile, like the text of /etc/group."""
    group: str = ""
