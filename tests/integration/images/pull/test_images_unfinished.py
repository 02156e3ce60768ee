"""Pulls that do not finish: their verified layers are kept for the next try, within bounds."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from daemonkit.faults import Fault, Missing
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from images.image_errors import DiskFull
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.registry import names
from images.registry.credentials import ANONYMOUS
from images.rpc.service import add_image_services
from images.store.catalogue import StoredImage
from tests.support.images.image_manager import running
from tests.support.images.images import BuiltImage, Layer, build, digest, packed
from tests.support.images.registry import Answer, LyingRegistry, content, stalling, status
from tests.support.waiting import until
from xenpod_proto.images.v1 import images_pb2, images_pb2_grpc

pytestmark = pytest.mark.skipif(shutil.which("tar2sqfs") is None, reason="tar2sqfs is not installed")
NOISE = random.Random(17)
SIZE = 100_000


def _image(layers: int, label: str) -> BuiltImage:
    return build(
        [packed(Layer().file(f"{label}{n}", NOISE.randbytes(SIZE)).tar(), "") for n in range(layers)]
    )


IMAGE = _image(5, "a")
PATHS = [f"/v2/app/blobs/{digest(layer.data)}" for layer in IMAGE.layers]
FILES = [digest(layer.data)[7:] for layer in IMAGE.layers]
# One at a time, in order.
SETTINGS = {"downloads_per_image": 1, "retry_seconds": 0.01, "tries_per_host": 1, "part_bytes": 1}


@asynccontextmanager
async def managing(directory: Path, **more: object) -> AsyncIterator[ImageManager]:
    settings = ImageSettings(directory, directory / "certs.d", **(SETTINGS | more))  # type: ignore[arg-type]
    async with running(settings) as manager:
        yield manager


async def _pull(manager: ImageManager, registry: LyingRegistry) -> StoredImage:
    return await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)


def _kept(manager: ImageManager) -> list[int]:
    """The numbers of IMAGE's layers in the store; nothing else of a pull is there."""
    found = {path.name for path in manager.store.files.named()}
    assert found <= set(FILES)
    assert list(manager.store.files.ingest.iterdir()) == []
    return [number for number, name in enumerate(FILES) if name in found]


def _asked(registry: LyingRegistry) -> list[int]:
    return [PATHS.index(path) for path in registry.paths() if path in PATHS]


async def _cancelled_at(
    manager: ImageManager, registry: LyingRegistry, number: int, image: BuiltImage = IMAGE
) -> None:
    """A pull that is cancelled in the middle of a layer."""
    data = image.layers[number].data
    path = f"/v2/app/blobs/{digest(data)}"
    release, before = threading.Event(), registry.answers[path]
    loop, asked = asyncio.get_running_loop(), asyncio.Event()

    def half(handler: BaseHTTPRequestHandler) -> None:
        loop.call_soon_threadsafe(asked.set)
        stalling(data[: len(data) // 2], len(data), release)(handler)

    registry.answers[path] = half
    pulling = asyncio.create_task(_pull(manager, registry))
    await asyncio.wait_for(asked.wait(), 60)
    pulling.cancel()
    with suppress(asyncio.CancelledError):
        await pulling
    await manager.pulls.drain()
    release.set()
    registry.answers[path] = before


async def test_cancelled_pull_resumes(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            await _cancelled_at(manager, registry, 3)
            assert _kept(manager) == [0, 1, 2]
            assert manager.store.images() == []
            registry.requests.clear()
            image = await _pull(manager, registry)
            assert _asked(registry) == [3, 4]
            assert not (await manager.verify(image)).faults
            # The layers are the image's now, and go with the image.
            await manager.remove(image.id)
            assert manager.store.files.named() == []


async def test_failed_pull_resumes(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            for number, answer in ((2, status(404)), (3, status(503)), (4, content(b"other bytes"))):
                before = registry.answers[PATHS[number]]
                registry.answers[PATHS[number]] = answer
                registry.requests.clear()
                with pytest.raises(Fault):
                    await _pull(manager, registry)
                assert _kept(manager) == list(range(number))
                registry.answers[PATHS[number]] = before
            registry.requests.clear()
            await _pull(manager, registry)
            assert _asked(registry) == [4]


async def test_a_restart_counts_on(tmp_path: Path) -> None:
    """The kept layers survive the daemon; expired layers do not."""
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            await _cancelled_at(manager, registry, 3)
            first = manager.store.files.blob_path(f"sha256:{FILES[0]}")
        since = first.stat().st_mtime
        os.utime(first, (since - 3590, since - 3590))
        async with managing(tmp_path) as manager:
            assert _kept(manager) == [0, 1, 2]
        os.utime(first, (since - 3601, since - 3601))
        async with managing(tmp_path) as manager:
            assert _kept(manager) == [1, 2]
            # A clock that was set back keeps nothing for ever.
            path = manager.store.files.blob_path(f"sha256:{FILES[1]}")
            os.utime(path, (since + 100_000, since + 100_000))
            manager.store.unfinished.trim()
            assert _kept(manager) == [2]


async def test_parts_of_an_unfinished_pull_are_removed_after_their_time(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path, unfinished_seconds=1.0) as manager:
            await _cancelled_at(manager, registry, 2)
            await until(lambda: not _kept(manager))


async def test_size_of_unfinished_pulls_is_bounded_and_counted(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path, unfinished_bytes=int(2.5 * SIZE)) as manager:
            before = (await manager.usage()).bytes
            await _cancelled_at(manager, registry, 4)
            assert len(_kept(manager)) == 2
            kept = manager.store.unfinished.bytes()
            assert 2 * SIZE <= kept <= 2.5 * SIZE
            assert (await manager.usage()).bytes >= before + kept
            assert manager.store.unfinished.give_back() == kept
            assert _kept(manager) == []
        async with managing(tmp_path / "none", unfinished_bytes=0) as manager:
            await _cancelled_at(manager, registry, 2)
            assert _kept(manager) == []


async def test_damaged_kept_layer_is_fetched_again(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            await _cancelled_at(manager, registry, 3)
            path = manager.store.files.blob_path(f"sha256:{FILES[1]}")
            path.write_bytes(bytes(path.stat().st_size))
            registry.requests.clear()
            image = await _pull(manager, registry)
            assert sorted(_asked(registry)) == [1, 3, 4]
            assert not (await manager.verify(image)).faults


async def test_another_pull_takes_its_layers_and_leaves_the_rest(tmp_path: Path) -> None:
    other = build(IMAGE.layers[:2])
    with LyingRegistry("app", "1", IMAGE) as registry, LyingRegistry("app", "1", other) as second:
        async with managing(tmp_path) as manager:
            await _cancelled_at(manager, registry, 3)
            small = await _pull(manager, second)
            assert _asked(second) == []
            assert manager.store.unfinished.bytes() < 2 * SIZE
            await manager.remove(small.id)
            assert _kept(manager) == [2]
            with pytest.raises(Missing):
                await manager.pull(names.parse(f"{registry.netloc}/app:2"), ANONYMOUS)
            assert _kept(manager) == [2]


async def test_the_image_itself_at_fault_keeps_nothing(tmp_path: Path) -> None:
    """The next try would fail in the same way."""
    broken = build([*IMAGE.layers[:2], packed(b"no tar" * 1000, "")])
    with LyingRegistry("app", "1", broken) as registry:
        async with managing(tmp_path) as manager:
            with pytest.raises(Fault, match="tar|header|block"):
                await _pull(manager, registry)
            assert _kept(manager) == []


@pytest.mark.root
@pytest.mark.parametrize("left", [1_200_000, 2_000_000], ids=["for its layer", "for its filesystem"])
async def test_pull_in_need_of_space_gets_the_kept_layers_space(tmp_path: Path, left: int) -> None:
    """Before the fetch of a layer that cannot fit, or when the disk turns out to be full."""
    large = build([packed(Layer().file(f"l{n}", NOISE.randbytes(1_000_000)).tar(), "") for n in range(4)])
    other = build([packed(Layer().file("other", NOISE.randbytes(1_500_000)).tar(), "")])
    small = tmp_path / "small"
    small.mkdir()
    await asyncio.to_thread(
        subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=12m", "xenpod-test", str(small)], check=True
    )
    try:
        with LyingRegistry("app", "1", large) as registry, LyingRegistry("app", "1", other) as second:
            async with managing(small) as manager:
                await _cancelled_at(manager, registry, 3, large)
                assert manager.store.unfinished.bytes() >= 3_000_000
                await _leave(small, left)
                image = await _pull(manager, second)
                assert not (await manager.verify(image)).faults
                assert manager.store.unfinished.bytes() == 0
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", str(small)], check=True)


async def _leave(disk: Path, size: int) -> None:
    """Fill a disk up to the last ``size`` bytes."""
    free = os.statvfs(disk)
    with (disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - size)


async def test_nearly_full_disk_gets_the_kept_layers_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the kubelet has to remove images: the kubelet cannot see these layers."""
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            await _cancelled_at(manager, registry, 3)
            real = os.statvfs(tmp_path)
            for percent, kept in ((16, [0, 1, 2]), (14, [])):
                fields = list(real)
                fields[4] = real.f_blocks * percent // 100
                with monkeypatch.context() as patch:
                    patch.setattr(os, "statvfs", lambda _, fields=fields: os.statvfs_result(fields))
                    manager.store.unfinished.relieve()
                assert _kept(manager) == kept


LARGE = build([packed(Layer().file("large", NOISE.randbytes(8 << 20)).tar(), how) for how in ("", "gzip")])
HALF = 5 << 20


def _from(data: bytes, begins: list[int], part: int | None = None) -> Answer:
    """Answers as a host with ranges, and remembers the offsets; part: all available bytes."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        begin = int(handler.headers.get("Range", "bytes=0-")[6:-1])
        begins.append(begin)
        if part is not None and begin >= part:
            return status(404)(handler)
        handler.send_response(206 if begin else 200)
        if begin:
            handler.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        handler.send_header("Content-Length", str(len(data) - begin))
        handler.end_headers()
        handler.wfile.write(data[begin:][:part])
        handler.close_connection = part is not None

    return answer


def _parts(manager: ImageManager) -> list[int]:
    return [path.stat().st_size for path in manager.store.files.partial()]


@pytest.mark.parametrize("number", [0, 1], ids=["plain", "gzip"])
@pytest.mark.parametrize("how", ["sound", "no ranges", "damaged", "too long", "whole", "killed"])
async def test_a_large_layer_goes_on_at_its_byte(tmp_path: Path, number: int, how: str) -> None:
    """The fetched part is read again, and counts only with the digest of the whole layer."""
    data, begins = LARGE.layers[number].data, list[int]()
    path = f"/v2/app/blobs/{digest(data)}"
    with LyingRegistry("app", "1", LARGE) as registry:
        async with managing(tmp_path) as manager:
            registry.answers[path] = _from(data, begins, HALF)
            with pytest.raises(Fault):
                await _pull(manager, registry)
            assert _parts(manager) == [HALF]
            assert manager.store.unfinished.bytes() >= HALF
            (part,) = manager.store.files.partial()
            begins.clear()
            if how == "damaged":
                part.write_bytes(bytes(HALF))
            elif how in ("too long", "whole"):
                part.write_bytes(data + (b"!" if how == "too long" else b""))
            elif how == "killed":
                part.rename(manager.store.files.ingest / f"layer-{part.name}.7")
        async with managing(tmp_path) as manager:
            registry.answers[path] = content(data) if how == "no ranges" else _from(data, begins)
            image = await _pull(manager, registry)
            assert not (await manager.verify(image)).faults
            assert _parts(manager) == []
        assert begins == {"no ranges": [], "damaged": [HALF, 0], "too long": [0], "whole": []}.get(
            how, [HALF]
        )


async def test_a_part_is_bounded_as_whole_layers_are(tmp_path: Path) -> None:
    data = LARGE.layers[0].data
    path = f"/v2/app/blobs/{digest(data)}"
    with LyingRegistry("app", "1", LARGE) as registry:
        for size, bound, kept in ((HALF, 8 << 20, [HALF]), (HALF, 1 << 20, []), (3 << 20, 8 << 20, [])):
            async with managing(tmp_path, unfinished_bytes=bound) as manager:
                registry.answers[path] = _from(data, [], size)
                with pytest.raises(Fault):
                    await _pull(manager, registry)
                assert _parts(manager) == kept
                given = manager.store.unfinished.give_back()
                assert bool(given) == bool(kept) and _parts(manager) == []
        async with managing(tmp_path) as manager:
            registry.answers[path] = _from(data[:HALF] + bytes(len(data) - HALF), [])
            with pytest.raises(Fault, match="another digest"):
                await _pull(manager, registry)
            # All bytes came, and were wrong: the wrong part is unknown.
            assert _parts(manager) == []


async def test_another_host_continues_after_a_break(tmp_path: Path) -> None:
    data, begins = LARGE.layers[0].data, list[int]()
    path = f"/v2/app/blobs/{digest(data)}"
    with LyingRegistry("app", "1", LARGE) as mirror, LyingRegistry("app", "1", LARGE) as registry:
        # The mirror's bytes are wrong, too: the registry is asked for all bytes, and is not blamed.
        for wrong, asked in ((b"", [HALF]), (b"!", [HALF, 0])):
            begins.clear()
            mirror.answers[path] = _from(wrong + data[len(wrong) :], [], HALF)
            registry.answers[path] = _from(data, begins)
            state = tmp_path / f"state{len(wrong)}"
            (state / "certs.d" / registry.netloc).mkdir(parents=True)
            hosts = f'server = "http://{registry.netloc}"\n[host."http://{mirror.netloc}"]\n'
            (state / "certs.d" / registry.netloc / "hosts.toml").write_text(hosts)
            async with managing(state) as manager:
                image = await _pull(manager, registry)
                assert not (await manager.verify(image)).faults
            assert begins == asked


async def test_gc_removes_kept_layers_and_reports_their_size(tmp_path: Path) -> None:
    socket = tmp_path / "cri.sock"
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            await _cancelled_at(manager, registry, 3)
            async with serve_unix(socket, lambda server: add_image_services(server, manager), name="test"):
                async with channel(socket) as link:
                    images = images_pb2_grpc.ImagesStub(link)
                    dry = await images.Collect(images_pb2.CollectRequest(dry_run=True))
                    assert dry.unfinished_bytes >= 3 * SIZE and _kept(manager) == [0, 1, 2]
                    done = await images.Collect(images_pb2.CollectRequest())
                    assert done.unfinished_bytes == dry.unfinished_bytes <= done.freed_bytes
                    assert _kept(manager) == []


async def _fails_beside(manager: ImageManager, registry: LyingRegistry, data: bytes, other: bytes) -> Fault:
    """Error of a pull whose first layer comes in half; the second layer comes later."""
    loop, second = asyncio.get_running_loop(), registry.answers[f"/v2/app/blobs/{digest(other)}"]
    ended = threading.Event()

    def fetched() -> bool:
        return any(path.stat().st_size >= HALF for path in manager.store.files.ingest.glob("layer-*"))

    def after_the_half(handler: BaseHTTPRequestHandler) -> None:
        asyncio.run_coroutine_threadsafe(until(fetched), loop).result()
        second(handler)

    registry.answers[f"/v2/app/blobs/{digest(data)}"] = stalling(data[:HALF], len(data), ended)
    registry.answers[f"/v2/app/blobs/{digest(other)}"] = after_the_half
    try:
        async with asyncio.timeout(30):
            with pytest.raises(Fault) as failed:
                await _pull(manager, registry)
    finally:
        ended.set()
    return failed.value


async def test_the_image_itself_at_fault_keeps_no_part_either(tmp_path: Path) -> None:
    broken = build([LARGE.layers[0], packed(b"no tar" * 1000, "")])
    with LyingRegistry("app", "1", broken) as registry:
        async with managing(tmp_path, downloads_per_image=2) as manager:
            fault = await _fails_beside(manager, registry, *(layer.data for layer in broken.layers))
            assert "tar" in str(fault)
            assert _parts(manager) == [] and manager.store.unfinished.bytes() == 0


@pytest.mark.root
async def test_pull_on_a_full_disk_does_not_keep_its_own_parts(tmp_path: Path) -> None:
    """Or the pull would begin anew for ever on a disk that is too small."""
    large = build([LARGE.layers[0], packed(Layer().file("more", NOISE.randbytes(12 << 20)).tar(), "")])
    small = tmp_path / "small"
    small.mkdir()
    await asyncio.to_thread(
        subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=14m", "xenpod-test", str(small)], check=True
    )
    try:
        with LyingRegistry("app", "1", large) as registry:
            async with managing(small, downloads_per_image=2) as manager:
                fault = await _fails_beside(manager, registry, *(layer.data for layer in large.layers))
                assert isinstance(fault, DiskFull)
                assert _parts(manager) == []
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", str(small)], check=True)
