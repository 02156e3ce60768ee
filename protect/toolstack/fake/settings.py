"""What can be set of the fake toolstack (``[fake]`` in protectd.toml)."""

from __future__ import annotations

from dataclasses import dataclass

from daemonkit.config import Bytes

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class FakeSettings:
    """``memory`` is what all zones may have together; 0 means this machine's less ``reserve``."""

    memory: Bytes = Bytes(0)
    reserve: Bytes = Bytes(1024 * MIB)
    pids_limit: int = 4096
    """Processes and threads that one zone may have."""
    launch_seconds: float = 30.0
    """How long the start of a zone's first process may take before it counts as failed."""
