"""The CPU time of the current thread, without garbage collections."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping


class _Collections(threading.local):
    """Garbage collections in the current thread, in seconds of CPU time."""

    began = 0.0
    seconds = 0.0


_collections = _Collections()


def cpu_seconds() -> float:
    """CPU seconds of the current thread.  A collection is left out: its garbage is the whole daemon's."""
    return time.thread_time() - _collections.seconds


def _account(phase: str, _info: Mapping[str, int]) -> None:
    if phase == "start":
        _collections.began = time.thread_time()
    else:
        _collections.seconds += time.thread_time() - _collections.began


gc.callbacks.append(_account)
