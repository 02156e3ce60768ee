"""Facts about the delegate stored across our restarts: its first answer, and its cgroup driver.

Right after our start, nothing is known of an absent delegate.  A delegate that never answered has no pods,
and lists hold only ours.  If the delegate has answered before, lists fail until its next answer: otherwise
the kubelet would believe that its pods are gone.
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
    """The facts in ``delegate.json``, about the delegate at one endpoint."""

    def __init__(self, state_dir: Path, delegate: Delegate) -> None:
        self._path = state_dir / "delegate.json"
        self._delegate = delegate
        self.runtime_config = b""
        """The last answer to RuntimeConfig, encoded; b"": not known."""
        self._load()

    def note(self, runtime_config: bytes = b"") -> None:
        """Store that the delegate has answered, with its RuntimeConfig if known."""
        new = runtime_config not in (b"", self.runtime_config)
        if self._delegate.ever_answered and not new:
            return
        self._delegate.ever_answered = True
        self.runtime_config = runtime_config or self.runtime_config
        value = {"endpoint": self._delegate.endpoint, "runtime_config": self.runtime_config.hex()}
        try:
            _write_whole(self._path, json.dumps(value))
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


def _write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all, even if the power fails."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
