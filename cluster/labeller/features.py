"""Writes a feature file of Node Feature Discovery, whose worker makes labels from the file.

Format: Node Feature Discovery, "Local feature source": lines ``name=value`` in a file of features.d.  A file
with a dot at the start of its name is ignored; renaming a file changes it at once.
"""

from __future__ import annotations

import os
from pathlib import Path

from cluster.labeller.labels import Labels
from daemonkit.faults import Refused

DIRECTORY = Path("/etc/kubernetes/node-feature-discovery/features.d")

_NAME = "xenpod"
_HEAD = "# Made by xenpod-labels; changes are overwritten.\n"


class FeatureFile:
    """The file ``xenpod`` in a folder.  The folder is made if missing."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._path = directory / _NAME
        self._new = directory / f".{_NAME}.new"

    async def put(self, labels: Labels) -> bool:
        """Write the labels; returns whether the file has changed.  Refused: writing failed."""
        content = (_HEAD + "".join(f"{key}={value}\n" for key, value in sorted(labels.items()))).encode()
        try:
            if self._content() == content:
                return False
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._new.unlink(missing_ok=True)
            with self._new.open("xb") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self._new.replace(self._path)
        except OSError as error:
            raise Refused("write features to", str(self._path), error.strerror or str(error)) from error
        return True

    async def remove(self) -> bool:
        """Remove the file, and thereby Node Feature Discovery's labels; returns whether the file existed."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Refused("remove", str(self._path), error.strerror or str(error)) from error
        return True

    def _content(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""
