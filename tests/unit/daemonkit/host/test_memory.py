"""Freed memory goes back to the system."""

from __future__ import annotations

import asyncio

import pytest

from daemonkit.host import memory

MIB = 1 << 20


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

    async def next_trim(self) -> None:
        """Wait for one more trim."""
        before = self.trims
        while self.trims == before:  # noqa: ASYNC110 - a trim has no event
            await asyncio.sleep(0)


@pytest.fixture
def malloc(monkeypatch: pytest.MonkeyPatch) -> Malloc:
    made = Malloc()
    monkeypatch.setattr(memory, "resident", made.resident)
    monkeypatch.setattr(memory, "trim", made.trim)
    monkeypatch.setattr(memory, "_LOOK", 0.001)
    monkeypatch.setattr(memory, "_LONGEST", 0.002)
    return made


async def test_memory_in_use_during_one_trim_is_given_back_by_a_later_one(malloc: Malloc) -> None:
    keeping = asyncio.create_task(memory.keep_small())
    await asyncio.sleep(0)
    malloc.size, malloc.in_use = 150 * MIB, True
    await malloc.next_trim()
    malloc.in_use = False
    while malloc.size > 100 * MIB:
        await malloc.next_trim()
    keeping.cancel()


async def test_a_process_that_has_not_grown_is_not_trimmed(malloc: Malloc) -> None:
    keeping = asyncio.create_task(memory.keep_small())
    malloc.size = 104 * MIB
    await asyncio.sleep(0.05)
    assert malloc.trims == 0
    keeping.cancel()
