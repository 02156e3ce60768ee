"""What is stored of the delegate across our restarts: that it has answered, and its cgroup driver.

Right after our start nothing is known of a delegate that is away.  If it never answered, it has no pods, and
lists hold ours alone.  If it did, lists fail until it answers: else the kubelet would take its pods for gone.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from cri.delegate.link import Delegate
from daemonkit.logs import fields

log = logging.getLogger(__name__)


class DelegateFacts:
    """The facts that are stored in ``delegate.json``, about the delegate at one endpoint."""

    def __init__(self, state_dir: Path, delegate: Delegate) -> None:
        self._path = state_dir / "delegate.json"
        self._delegate = delegate
        self.runtime_config = b""
        """The last answer to RuntimeConfig, encoded; b"": not known."""
        self._load()

    def note(self, runtime_config: bytes = b"") -> None:
        """Store that the delegate has answered, and its RuntimeConfig if it was asked for that."""
        new = runtime_config not in (b"", self.runtime_config)
        if self._delegate.ever_answered and not new:
            return
        self._delegate.ever_answered = True
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
        self._delegate.ever_answered = True


def _write(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all, even if the power fails."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
