"""The file descriptors of this process, to see that a test leaves none open.

They are compared by number. A count alone misleads: what an earlier test left to the garbage collector may be
closed at any time.
"""

from __future__ import annotations

import os


def descriptors() -> frozenset[str]:
    """The numbers of those that are open, with that of the listing itself."""
    return frozenset(os.listdir("/proc/self/fd"))


def opened_since(before: frozenset[str]) -> frozenset[str]:
    """The numbers that ``descriptors()`` did not have before."""
    return descriptors() - before
