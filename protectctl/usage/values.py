"""Values of arguments: sizes, numbers."""

from __future__ import annotations

import argparse

_MOST = 1 << 31


def memory(text: str) -> int:
    """Bytes of a size, for example 512MiB."""
    from daemonkit import config  # imports cattrs, which few commands need

    try:
        return config.size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> int:
    """A number of at least 1."""
    if not text.isdecimal() or not 0 < int(text) < _MOST:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a number of at least 1")
    return int(text)


def count(text: str) -> int:
    """A number of at least 0."""
    if not text.isdecimal() or int(text) >= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a number of at least 0")
    return int(text)


def seconds(text: str) -> float:
    """A time, from a tenth of a second to an hour."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not 0.1 to 3600 seconds")
    return value
