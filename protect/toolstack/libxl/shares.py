"""The directory that a domain shares, as a path that a QEMU on the host can open."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from daemonkit.faults import Missing
from protect import mountspace
from protect.toolstack.port import DomainSpec


class Shared(AbstractContextManager["Shared"]):
    """QEMU opens the directory once, when the guest connects to it: until then ours must be open."""

    def __init__(self, root: int) -> None:
        """``root``: a descriptor; negative: there is none."""
        self._root = root

    @classmethod
    def open(cls, spec: DomainSpec) -> Shared:
        """Blocks, shortly.  Missing when there is no such namespace."""
        if spec.shared is None:
            return cls(-1)
        try:
            return cls(mountspace.open_root(spec.shared))
        except FileNotFoundError:
            cause = f"there is no mount namespace {spec.shared} to share"
            raise Missing("create domain", spec.name, cause) from None

    @property
    def path(self) -> Path | None:
        return Path(f"/proc/{os.getpid()}/fd/{self._root}") if self._root >= 0 else None

    def close(self) -> None:
        """May be repeated."""
        root, self._root = self._root, -1
        if root >= 0:
            os.close(root)

    def __exit__(self, *exception: object) -> None:
        self.close()


NOTHING = Shared(-1)
