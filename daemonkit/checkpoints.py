"""Named steps at which a test can have a daemon killed.

In production ``checkpoint`` is one dictionary look-up.  With the configuration key ``kill_at``
(fault injection; e.g. ``kill_at = "run-pod.network-made"``, or ``"run-pod.network-made:3"`` for the third
time that step is passed) the daemon sends itself SIGKILL there, as a power cut would: no handler,
no cleanup, no flush.
"""

from __future__ import annotations

import os
import re
import signal

from daemonkit.faults import Invalid

_NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
_names: dict[str, None] = {}
_armed: dict[str, int] = {}


def declare(*names: str) -> None:
    """Register step names (``verb.step``), once, where the module that passes them is defined."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"checkpoint name {name!r}: want lower-case words joined by . or -")
        _names[name] = None


def names() -> list[str]:
    """Every declared step, in the order of declaration (of the modules imported so far)."""
    return list(_names)


def arm(kill_at: str) -> None:
    """Kill this process at a step: ``name`` or ``name:n`` (its n-th passing, from 1); ``""`` disarms.

    Raises Invalid for a step that nobody declared, so that a test cannot pass by a misspelt name.
    """
    _armed.clear()
    if not kill_at:
        return
    name, _, count = kill_at.partition(":")
    if name not in _names:
        raise Invalid("arm checkpoint", name, "no such step", f"known: {', '.join(_names) or 'none'}")
    if count and not (count.isascii() and count.isdigit() and int(count) > 0):
        raise Invalid("arm checkpoint", name, f"count {count!r} is not a positive number")
    _armed[name] = int(count or 1)


def checkpoint(name: str) -> None:
    """Mark that the step ``name`` has been reached; ends the process when it is armed."""
    if name not in _names:
        raise LookupError(f"checkpoint {name!r} was never declared")
    if name not in _armed:
        return
    _armed[name] -= 1
    if _armed[name] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
