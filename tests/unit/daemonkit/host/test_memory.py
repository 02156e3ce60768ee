"""Freed memory goes back to the system."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

import pytest

from daemonkit.host import memory
from tests.support.waiting import until

MIB = 1 << 20


class Holder:
    """Refers to itself, and holds a buffer that malloc gives back after the object's end."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self.itself = self
        weakref.finalize(self, gone)


class Malloc:
    """A process of 100 MiB; a burst takes 50 MiB, which only a trim after the burst gives back."""

    def __init__(self) -> None:
        self.size = 100 * MIB
        self.in_use = False
        self.trims = 0

    def resident(self) -> int:
        return self.size

    def trim(self) -> None:
        self.trims += 1
        if not self.in_use:
            self.size = 100 * MIB

    def leave(self) -> None:
        self.in_use = False

    async def next_trim(self) -> None:
        """Wait for another trim."""
        before = self.trims
        await until(lambda: self.trims != before)


@pytest.fixture
def malloc(monkeypatch: pytest.MonkeyPatch) -> Malloc:
    made = Malloc()
    monkeypatch.setattr(memory, "resident", made.resident)
    monkeypatch.setattr(memory, "trim", made.trim)
    monkeypatch.setattr(memory, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(memory, "_LONGEST_SECONDS", 0.002)
    return made


async def test_memory_in_use_during_a_trim_is_given_back_by_a_later_trim(malloc: Malloc) -> None:
    keeping = asyncio.create_task(memory.keep_small())
    await asyncio.sleep(0)
    malloc.size, malloc.in_use = 150 * MIB, True
    await malloc.next_trim()
    malloc.in_use = False
    while malloc.size > 100 * MIB:
        await malloc.next_trim()
    keeping.cancel()


async def test_memory_held_by_cyclic_garbage_is_given_back(malloc: Malloc) -> None:
    keeping = asyncio.create_task(memory.keep_small())
    await asyncio.sleep(0)
    malloc.size, malloc.in_use = 150 * MIB, True
    Holder(malloc.leave)
    while malloc.size > 100 * MIB:
        await malloc.next_trim()
    keeping.cancel()


async def test_a_process_without_growth_is_not_trimmed(malloc: Malloc) -> None:
    keeping = asyncio.create_task(memory.keep_small())
    malloc.size = 104 * MIB
    await asyncio.sleep(0.05)
    assert malloc.trims == 0
    keeping.cancel()
