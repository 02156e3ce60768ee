"""Following a growing file, also after a cut at its beginning."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from protect.host.tail import follow


async def _until(pieces: AsyncGenerator[bytes, None], wanted: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(60):
        while not seen.endswith(wanted):
            seen += await anext(pieces)
    return seen


@pytest.mark.parametrize(
    ("content", "lines", "shown"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 0, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\n\n\n", 2, b"\n\n"),
        (b"", 3, b""),
        (b"x" * 200_000 + b"\nend\n", 1, b"end\n"),
    ],
)
async def test_following_begins_with_the_last_lines(
    tmp_path: Path, content: bytes, lines: int, shown: bytes
) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert b"".join([piece async for piece in follow(path, lines, None)]) == shown


async def test_added_lines_are_followed_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    over = asyncio.Event()
    pieces = follow(path, 1, over)
    assert await _until(pieces, b"two\n") == b"two\n"
    with path.open("ab", buffering=0) as log:
        log.write(b"three\n")
        assert await _until(pieces, b"three\n") == b"three\n"
        # Bytes before the end are shown, also of a file without a name.
        path.unlink()
        log.write(b"four\n")
        over.set()
    assert [piece async for piece in pieces] == [b"four\n"]


async def test_a_cut_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """As GuestLogs and fakedom cut: the tail stays, in the same file."""
    path = tmp_path / "log"
    lines = [b"line %d\n" % n for n in range(20_000)]
    path.write_bytes(b"".join(lines))
    over = asyncio.Event()
    pieces = follow(path, 0, over)
    seen = await _until(pieces, lines[-1])
    with path.open("ab", buffering=0) as log:
        tail = path.read_bytes()[-50_000:]
        os.truncate(path, 0)
        log.write(tail)
        log.write(b"after\n")
    seen += await _until(pieces, b"after\n")
    assert seen == b"".join(lines) + b"after\n"
    path.write_bytes(b"other\n")  # nothing of the old text is left: from the beginning
    assert await _until(pieces, b"other\n") == b"other\n"
    await pieces.aclose()


async def test_a_missing_file_and_a_link_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await anext(follow(tmp_path / "none", 1, None))
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        await anext(follow(tmp_path / "link", 1, None))
