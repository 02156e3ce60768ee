"""The file descriptors of this process, for tests that must leave none open.

Descriptors are compared by number. A count alone misleads: the garbage collector may close files of an
earlier test at any time.
"""

from __future__ import annotations

import os


def descriptors() -> frozenset[str]:
    """The open numbers, with the number of the listing itself."""
    return frozenset(os.listdir("/proc/self/fd"))


def opened_since(before: frozenset[str]) -> frozenset[str]:
    """The numbers that ``descriptors()`` did not have before."""
    return descriptors() - before
