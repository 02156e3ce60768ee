"""Broken connections, busy hosts, slow hosts: a download is continued, retried, or given up in time."""

from __future__ import annotations

import asyncio
import email.utils
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from daemonkit.faults import Fault
from images.image_errors import Corrupt, Interrupted, Stalled
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.registry import names
from images.registry.credentials import ANONYMOUS
from images.store.catalogue import StoredImage
from tests.support.images.image_manager import running
from tests.support.images.images import Layer, build, digest, packed
from tests.support.images.registry import Answer, LyingRegistry, content, status

IMAGE = build([packed(Layer().dir("etc").file("etc/passwd", bytes(range(256)) * 8000).tar(), "")])
DATA = IMAGE.layers[0].data
LAYER = f"/v2/app/blobs/{digest(DATA)}"
MANIFEST = "/v2/app/manifests/1"
PART = 500_000


@asynccontextmanager
async def managing(directory: Path, **more: object) -> AsyncIterator[ImageManager]:
    quick: dict[str, object] = {"connect_seconds": 30, "retry_seconds": 0.01}
    settings = ImageSettings(directory, directory / "certs.d", **(quick | more))  # type: ignore[arg-type]
    async with running(settings) as manager:
        yield manager


async def _pull(manager: ImageManager, netloc: str) -> StoredImage:
    return await manager.pull(names.parse(f"{netloc}/app:1"), ANONYMOUS)


def _leftovers(manager: ImageManager) -> list[Path]:
    root = manager.store.files.root
    return [p for p in root.rglob("*") if p.is_file() and not p.name.startswith(("images.db", "lock"))]


def _begin(handler: BaseHTTPRequestHandler) -> int:
    found = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", "bytes=0-"))
    assert found is not None
    return int(found[1])


def in_parts(data: bytes, part: int = PART, shift: int = 0, length: bool = True) -> Answer:
    """Gives ``part`` bytes from the requested offset, and hangs up; shift: error of the offset.

    length: whether the answer has a length.
    """

    def answer(handler: BaseHTTPRequestHandler) -> None:
        begin = _begin(handler)
        if begin:
            begin += shift
        handler.send_response(206 if begin else 200)
        if begin:
            handler.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        if length:
            handler.send_header("Content-Length", str(len(data) - begin))
        else:
            handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(data[begin : begin + part])
        handler.close_connection = True

    return answer


def then(*answers: Answer) -> Answer:
    """One answer after another; the last answer repeats."""
    left = list(answers)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(handler)

    return answer


def _ranges(registry: LyingRegistry) -> list[str]:
    asked = [(urlsplit(path).path, headers) for _, path, headers in registry.requests]
    return [headers.get("Range", "") for path, headers in asked if path == LAYER]


@pytest.mark.parametrize("length", [True, False], ids=["with its length", "without"])
async def test_layer_continues_at_the_byte_of_the_break(tmp_path: Path, length: bool) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[LAYER] = in_parts(DATA, length=length)
        async with managing(tmp_path) as manager:
            image = await _pull(manager, registry.netloc)
            assert image.id == IMAGE.id
            (kept,) = (manager.store.files.root / "blobs/sha256").iterdir()
            assert kept.read_bytes() == DATA
    begins = [f"bytes={begin}-" for begin in range(PART, len(DATA), PART)]
    assert _ranges(registry) == ["", *begins]


@pytest.mark.parametrize(
    "second",
    [content(DATA), in_parts(DATA, len(DATA), shift=-1234), then(status(416), content(DATA))],
    ids=["the whole", "from before", "not in parts"],
)
async def test_host_with_more_bytes_than_the_rest_is_a_fault(tmp_path: Path, second: Answer) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[LAYER] = then(in_parts(DATA), second)
        async with managing(tmp_path) as manager:
            assert (await _pull(manager, registry.netloc)).id == IMAGE.id


@pytest.mark.parametrize(
    ("second", "fault", "words"),
    [
        (in_parts(DATA[:PART] + bytes(len(DATA) - PART), len(DATA)), Corrupt, "another digest"),
        (in_parts(DATA + bytes(10), len(DATA)), Corrupt, "offers"),
        (in_parts(DATA, shift=1), Corrupt, "was asked for byte"),
        (status(206, Content_Range="bytes x"), Fault, "Content-Range"),
        (status(416), Fault, "no part"),
        (status(404), Fault, "no such image"),
    ],
    ids=["other bytes", "more bytes", "a gap", "nonsense", "never", "gone"],
)
async def test_host_with_a_wrong_continuation_is_a_fault(
    tmp_path: Path, second: Answer, fault: type[Fault], words: str
) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[LAYER] = then(in_parts(DATA), second)
        async with managing(tmp_path) as manager:
            with pytest.raises(fault, match=words):
                await _pull(manager, registry.netloc)
            assert _leftovers(manager) == []


def _mirror(directory: Path, host: str, mirror: str) -> None:
    (directory / "certs.d" / host).mkdir(parents=True)
    hosts = f'server = "http://{host}"\n[host."http://{mirror}"]\ncapabilities = ["pull", "resolve"]\n'
    (directory / "certs.d" / host / "hosts.toml").write_text(hosts)


async def test_mirror_with_repeated_breaks_gives_way_to_the_next_host(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as mirror, LyingRegistry("app", "1", IMAGE) as registry:
        mirror.answers[LAYER] = in_parts(DATA, 1000)
        _mirror(tmp_path, registry.netloc, mirror.netloc)
        async with managing(tmp_path, tries_per_host=4) as manager:
            assert (await _pull(manager, registry.netloc)).id == IMAGE.id
    assert _ranges(mirror) == ["", "bytes=1000-", "bytes=2000-", "bytes=3000-"]
    assert _ranges(registry) == [""]


@pytest.mark.parametrize("path", [MANIFEST, LAYER, f"/v2/app/blobs/{IMAGE.id}"])
@pytest.mark.parametrize("code", [429, 503])
async def test_busy_host_is_asked_again_after_its_pause(tmp_path: Path, path: str, code: int) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[path] = then(status(code, Retry_After="1"), registry.answers[path])
        async with managing(tmp_path) as manager:
            started = time.monotonic()
            assert (await _pull(manager, registry.netloc)).id == IMAGE.id
            assert time.monotonic() - started >= 1
    assert registry.paths().count(path) == 2


async def test_host_with_a_long_pause_is_not_waited_for(tmp_path: Path) -> None:
    date = email.utils.formatdate(time.time() + 7200, usegmt=True)
    for after in ("3600", date):
        with LyingRegistry("app", "1", IMAGE) as registry:
            registry.answers[MANIFEST] = status(429, Retry_After=after)
            async with managing(tmp_path) as manager:
                with pytest.raises(Interrupted, match="asked again in [0-9]{4} s"):
                    await _pull(manager, registry.netloc)
        assert registry.paths() == [MANIFEST]


def _trickle(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(DATA)))
    handler.end_headers()
    with suppress(OSError):
        for byte in DATA:
            handler.wfile.write(bytes([byte]))
            time.sleep(0.05)


async def test_trickling_host_counts_as_stalled(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[LAYER] = _trickle
        async with managing(tmp_path, stall_seconds=3) as manager:
            with pytest.raises(Stalled, match="bytes in"):
                await _pull(manager, registry.netloc)
            assert _leftovers(manager) == []


def _stall_after(data: bytes, size: int) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[:size])
        with suppress(OSError):
            # Until the peer hangs up.
            handler.connection.recv(1)
        handler.close_connection = True

    return answer


async def test_a_stall_in_the_middle_of_a_layer_is_gone_on_from(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[LAYER] = then(_stall_after(DATA, PART), in_parts(DATA, len(DATA)))
        async with managing(tmp_path, stall_seconds=3) as manager:
            assert (await _pull(manager, registry.netloc)).id == IMAGE.id
    assert _ranges(registry) == ["", f"bytes={PART}-"]


@pytest.mark.parametrize("wait", [lambda m: None, lambda m: m.pulls.drain()], ids=["stop", "drain"])
async def test_caller_leaving_during_a_pause_ends_the_pull(
    tmp_path: Path, wait: Callable[[ImageManager], object]
) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        asked, loop = asyncio.Event(), asyncio.get_running_loop()

        def busy(handler: BaseHTTPRequestHandler) -> None:
            status(503, Retry_After="15")(handler)
            loop.call_soon_threadsafe(asked.set)

        registry.answers[LAYER] = busy
        async with managing(tmp_path) as manager:
            pulling = asyncio.create_task(_pull(manager, registry.netloc))
            await asyncio.wait_for(asked.wait(), 60)
            pulling.cancel()
            started = time.monotonic()
            with suppress(asyncio.CancelledError):
                await pulling
            waiting = wait(manager)
            if waiting is not None:
                await waiting  # type: ignore[misc]
                assert _leftovers(manager) == []
        assert time.monotonic() - started < 10
