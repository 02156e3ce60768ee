"""What outlives our restarts: that the delegate has answered once, and how it drives cgroups.

While it is away right after a start there is no last word of it.  If it never was there it has no pods, and
lists are ours alone.  If it was, they fail until it answers, lest the kubelet believe that its pods are gone.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from cri.delegate.link import Delegate
from daemonkit.logs import fields

log = logging.getLogger(__name__)


class Met:
    """One small file, ``delegate.json``, for one endpoint."""

    def __init__(self, state_dir: Path, delegate: Delegate) -> None:
        self._path = state_dir / "delegate.json"
        self._delegate = delegate
        self.runtime_config = b""
        """RuntimeConfig's last answer; b"": not known."""
        self._load()

    def note(self, runtime_config: bytes = b"") -> None:
        """It has answered; ``runtime_config``: with this, if it was asked."""
        new = runtime_config not in (b"", self.runtime_config)
        if self._delegate.met and not new:
            return
        self._delegate.met = True
        self.runtime_config = runtime_config or self.runtime_config
        value = {"endpoint": self._delegate.endpoint, "runtime_config": self.runtime_config.hex()}
        try:
            _write(self._path, json.dumps(value))
        except OSError as error:
            log.error("not stored: %s", error, extra=fields(path=self._path))

    def _load(self) -> None:
        try:
            known = json.loads(self._path.read_bytes())
            if known["endpoint"] != self._delegate.endpoint:
                return
            self.runtime_config = bytes.fromhex(known["runtime_config"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error("cannot be read, and is written anew: %s", error, extra=fields(path=self._path))
        self._delegate.met = True


def _write(path: Path, text: str) -> None:
    """Whole or not at all, whenever the power fails."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
