"""Streaming lists: each item once, in messages of a bounded size; the end of the stream is the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

SIZE = 64
"""Items in one message: far below any message limit, and few messages for a full node."""


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """None for no items."""
    for start in range(0, len(items), SIZE):
        yield items[start : start + SIZE]
