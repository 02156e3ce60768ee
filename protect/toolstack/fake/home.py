"""The run directory of a fake toolstack, with its lock and its domains' directories."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import shutil
from hashlib import sha256
from pathlib import Path
from uuid import UUID

from daemonkit.faults import Refused
from protect.toolstack.fake.cgroups import Cgroups
from protect.toolstack.fake.hierarchies import find_hierarchies

log = logging.getLogger(__name__)

_GONE = ".gone-"


class Home:
    """``<run_dir>/domains`` and the names derived from it.  One process at a time uses the directory."""

    def __init__(self, run_dir: Path, guest_dir: Path) -> None:
        self.run_dir = run_dir
        self.domains = run_dir / "domains"
        self.instance = sha256(os.fsencode(os.path.realpath(run_dir))).hexdigest()[:8]
        self.fakedom = guest_dir / "fakedom"
        self.root = guest_dir / "root"
        self.cgroups = Cgroups(find_hierarchies(), self.instance)
        self._lock = -1

    def take(self) -> None:
        """Make and lock the directory.  Refused: another process holds the lock."""
        self.domains.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.run_dir / "fake.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise Refused("use run directory", str(self.run_dir), "another daemon uses it") from None
        self._lock = lock

    def leave(self) -> None:
        """Unlock the directory."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def directory(self, uuid: UUID) -> Path:
        """A domain's directory."""
        return self.domains / str(uuid)

    def known(self) -> list[UUID]:
        """The domains that have a directory; finishes removals that a killed daemon began."""
        found = []
        for entry in list(self.domains.iterdir()):
            if entry.name.startswith(_GONE):
                _remove_tree(entry)
            else:
                try:
                    found.append(UUID(entry.name))
                except ValueError:
                    log.warning("%s is not a domain's directory: left alone", entry)
        return found

    async def forget(self, uuid: UUID) -> None:
        """Remove a domain's directory.  It is renamed first; ``known`` can then finish the removal."""
        await asyncio.to_thread(self._forget, self.directory(uuid))

    def _forget(self, directory: Path) -> None:
        doomed = directory.with_name(_GONE + directory.name)
        try:
            os.rename(directory, doomed)
        except FileNotFoundError:
            return
        _remove_tree(doomed)


def _remove_tree(directory: Path) -> None:
    for last in (False, False, True):
        if not directory.exists():
            return
        try:
            shutil.rmtree(directory)
            return
        except OSError as error:
            # a monitor that outlived our wait may just now write the status: its new file appears
            # (ENOTEMPTY), or the rename removes the file's temporary name (ENOENT)
            if last or error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
