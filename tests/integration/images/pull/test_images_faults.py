"""Registries that lie or stall, a full disk, callers that go away: a clear fault each, nothing left."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import random
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import zstandard

from daemonkit.faults import Denied, Exhausted, Fault, Missing, TooLate, Unreachable
from images.bounds.limits import ImageLimits
from images.image_errors import Corrupt, Oversized, Unpackable
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.registry import names
from images.registry.credentials import ANONYMOUS, Credentials
from images.store.catalogue import StoredImage
from tests.support.images.image_manager import running
from tests.support.images.images import Layer, build, digest, packed
from tests.support.images.registry import Answer, LyingRegistry, content, stalling, status
from tests.support.waiting import until

IMAGE = build([packed(Layer().dir("etc").file("etc/passwd", b"x" * 3_000_000).tar(), "")])
LAYER = f"/v2/app/blobs/{digest(IMAGE.layers[0].data)}"
CONFIG = f"/v2/app/blobs/{IMAGE.id}"
MANIFEST = "/v2/app/manifests/1"
DATA = IMAGE.layers[0].data
NOISE = random.Random(3).randbytes(200_000)


@asynccontextmanager
async def managing(directory: Path, **more: object) -> AsyncIterator[ImageManager]:
    settings = ImageSettings(directory, directory / "certs.d", connect_seconds=30, **more)  # type: ignore[arg-type]
    async with running(settings) as manager:
        yield manager


async def _pull(manager: ImageManager, netloc: str, credentials: Credentials = ANONYMOUS) -> StoredImage:
    return await manager.pull(names.parse(f"{netloc}/app:1"), credentials)


def _leftovers(manager: ImageManager) -> list[Path]:
    root = manager.store.files.root
    return [p for p in root.rglob("*") if p.is_file() and not p.name.startswith(("images.db", "lock"))]


def _loop(handler: BaseHTTPRequestHandler) -> None:
    status(302, Location=handler.path)(handler)


def _endless_redirect(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://127.0.0.1:1/x")
    handler.end_headers()
    handler.close_connection = True
    with suppress(OSError):
        # Far more than the sockets' buffers: to read the whole answer would take long.
        for _ in range(20_000):
            handler.wfile.write(bytes(1 << 20))


def _cut(handler: BaseHTTPRequestHandler) -> None:
    content(DATA[:5000], length=len(DATA))(handler)


FAULTS: dict[str, tuple[dict[str, Answer], type[Fault], str]] = {
    "corrupt layer": ({LAYER: content(DATA[:-1] + b"!")}, Corrupt, "another digest"),
    "corrupt early": ({LAYER: content(b"!" + DATA[1:])}, Corrupt, "another digest"),
    "layer too short": ({LAYER: content(DATA[:-512])}, Corrupt, "offers"),
    "layer too long": ({LAYER: content(DATA + bytes(512))}, Corrupt, "offers"),
    "lying length": ({LAYER: _cut}, Unreachable, " "),
    "corrupt config": ({CONFIG: content(IMAGE.config[:-1] + b" ")}, Corrupt, "another digest"),
    "config missing": ({CONFIG: status(404)}, Missing, r"^pull .*: no such image"),
    "layer denied": ({LAYER: status(403)}, Denied, "denied"),
    "busy": ({LAYER: status(429)}, Unreachable, "429"),
    "out of service": ({MANIFEST: status(503)}, Unreachable, "503"),
    "broken": ({MANIFEST: status(500)}, Unreachable, "500"),
    "an odd refusal": ({LAYER: status(418)}, Unreachable, r"^pull .*: the registry answers 418 "),
    "redirects to itself": ({LAYER: _loop}, Unreachable, "TooManyRedirects"),
    "redirects to a file": ({LAYER: status(302, Location="file:///etc/passwd")}, Unreachable, " "),
    "redirects with an endless body": ({LAYER: _endless_redirect}, Unreachable, "refused"),
    "redirects to nobody": ({LAYER: status(302, Location="http://127.0.0.1:1/x")}, Unreachable, "refused"),
    "manifest is no json": ({MANIFEST: content(b"<html>")}, Corrupt, "not JSON"),
    "manifest is a list": ({MANIFEST: content(b"[]")}, Corrupt, "not a JSON object"),
    "manifest is deep": ({MANIFEST: content(b"[" * 100_000)}, Corrupt, " "),
    "manifest is huge": ({MANIFEST: content(b" " * (5 << 20))}, Corrupt, "larger than"),
    "manifest is empty": ({MANIFEST: content(b"{}")}, Fault, "not an image"),
    "manifest without digests": (
        {MANIFEST: content(b'{"layers": [{}], "config": {}}')},
        Corrupt,
        "descriptor",
    ),
}


@pytest.mark.parametrize(("answers", "fault", "words"), FAULTS.values(), ids=FAULTS.keys())
async def test_pull_from_a_lying_registry_fails_without_remains(
    tmp_path: Path, answers: dict[str, Answer], fault: type[Fault], words: str
) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers |= answers
        async with managing(tmp_path) as manager:
            with pytest.raises(fault, match=words) as raised:
                await _pull(manager, registry.netloc)
            assert raised.value.operation in ("pull", "read")
            assert _leftovers(manager) == []
            assert manager.store.images() == []


def _hostile() -> dict[str, tuple[bytes, type[Fault]]]:
    bomb = Layer().file("zeros", bytes(64 << 20)).tar()
    return {
        "gzip bomb": (gzip.compress(bomb, mtime=0), Oversized),
        "zstd bomb": (zstandard.compress(bomb), Oversized),
        "truncated zstd": (zstandard.compress(Layer().file("f", NOISE).tar())[:-2000], Unpackable),
        "corrupt gzip": (gzip.compress(NOISE, mtime=0)[:2000] + NOISE, Unpackable),
        "truncated tar": (gzip.compress(Layer().file("f", b"x" * 5000).tar()[:2000], mtime=0), Unpackable),
        "truncated gzip": (gzip.compress(Layer().file("f", b"x" * 5000).tar(), mtime=0)[:-20], Unpackable),
        "no tar": (b"no tar at all" * 100, Unpackable),
        "link to nowhere": (Layer().link("a", "../../../etc/shadow").tar(), Unpackable),
        "symlink loop": (Layer().symlink("a", "a").file("a/b").tar(), Unpackable),
        "a whiteout of the root": (Layer().file(".wh..").tar(), Unpackable),
    }


@pytest.mark.parametrize("name", _hostile().keys())
async def test_hostile_layer_fails_its_pull_without_remains(tmp_path: Path, name: str) -> None:
    data, fault = _hostile()[name]
    good = packed(Layer().file("ok", b"ok").tar())
    bomb = packed(Layer().file("zeros", bytes(64 << 20)).tar())
    plain = bomb if name.endswith("bomb") else packed(data, "")
    image = build([good, type(plain)(data, plain.diff_id, plain.media_type)])
    with LyingRegistry("app", "1", image) as registry:
        async with managing(tmp_path, limits=ImageLimits(ratio=50, unpacked_floor_bytes=1 << 20)) as manager:
            with pytest.raises(fault):
                await _pull(manager, registry.netloc)
            assert _leftovers(manager) == []
    assert not (tmp_path.parent / "etc").exists()


@pytest.mark.parametrize(
    "limits",
    [{"entries": 25}, {"index_bytes": 2000}, {"unpacked_bytes": 70_000}, {"memory_bytes": 9000}],
    ids=lambda limits: next(iter(limits)),
)
async def test_small_layers_with_a_large_sum_are_refused(tmp_path: Path, limits: dict[str, int]) -> None:
    layers = []
    for number in range(4):
        layer = Layer()
        for name in range(10):
            layer.file(f"{number}/{name}" + "n" * 70, b"x" * 1000)
        layers.append(layer.tar())
    with LyingRegistry("app", "1", build(layers)) as registry:
        async with managing(tmp_path, limits=ImageLimits(**limits)) as manager:
            with pytest.raises(Oversized, match=rf"images\.limits\.{next(iter(limits))} in cri\.toml"):
                await _pull(manager, registry.netloc)
            assert _leftovers(manager) == []


async def test_traversal_ends_inside_the_image(tmp_path: Path) -> None:
    layer = Layer().symlink("out", str(tmp_path)).file("out/written", b"1").file("../../above", b"2")
    with LyingRegistry("app", "1", build([layer.tar()])) as registry:
        async with managing(tmp_path / "state") as manager:
            image = await _pull(manager, registry.netloc)
            listed = await asyncio.to_thread(
                subprocess.run,
                ["rdsquashfs", "-d", str(image.stack[0])],
                capture_output=True,
                text=True,
                check=True,
            )
            assert f"file {tmp_path.relative_to('/')}/written" in listed.stdout
            assert "file above" in listed.stdout
    assert not (tmp_path / "written").exists()


async def test_stalling_registry_fails_the_pull(tmp_path: Path) -> None:
    release = threading.Event()
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[LAYER] = stalling(DATA[:1000], len(DATA), release)
        async with managing(tmp_path, stall_seconds=0.5) as manager:
            with pytest.raises(TooLate):
                await _pull(manager, registry.netloc)
            assert _leftovers(manager) == []
        release.set()


async def test_pull_beyond_its_time_limit_fails(tmp_path: Path) -> None:
    release = threading.Event()
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[LAYER] = stalling(DATA[:1000], len(DATA), release)
        async with managing(tmp_path, pull_seconds=0.5) as manager:
            with pytest.raises(TooLate, match="longer than"):
                await _pull(manager, registry.netloc)
            assert _leftovers(manager) == []
        release.set()


async def _asked_for(registry: LyingRegistry, path: str) -> None:
    await until(lambda: path in registry.paths())


async def test_when_the_last_caller_goes_away_nothing_is_left(tmp_path: Path) -> None:
    release = threading.Event()
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[LAYER] = stalling(DATA[:2_000_000], len(DATA), release)
        async with managing(tmp_path) as manager:
            first = asyncio.create_task(_pull(manager, registry.netloc))
            second = asyncio.create_task(_pull(manager, registry.netloc))
            await _asked_for(registry, LAYER)
            first.cancel()
            await asyncio.sleep(0)
            assert _leftovers(manager) != [] or not second.done()
            second.cancel()
            async with asyncio.timeout(30):  # half of a stall's limit
                await asyncio.gather(first, second, return_exceptions=True)
                await manager.pulls.drain()
            assert _leftovers(manager) == []
            release.set()
            registry.answers[LAYER] = content(DATA)
            assert (await _pull(manager, registry.netloc)).id == IMAGE.id
    assert registry.paths().count(LAYER) == 2


async def test_cancelled_caller_leaves_the_pull_to_the_other_caller(tmp_path: Path) -> None:
    release = threading.Event()

    def slowly(handler: BaseHTTPRequestHandler) -> None:
        release.wait(300)
        content(DATA)(handler)

    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[LAYER] = slowly
        async with managing(tmp_path) as manager:
            first = asyncio.create_task(_pull(manager, registry.netloc))
            second = asyncio.create_task(_pull(manager, registry.netloc))
            await _asked_for(registry, LAYER)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            release.set()
            assert (await second).id == IMAGE.id
    assert registry.paths().count(LAYER) == 1


async def test_another_name_with_the_same_layer_goes_on_when_the_first_is_cancelled(tmp_path: Path) -> None:
    release = threading.Event()
    other = build([IMAGE.layers[0]], {"Labels": {"other": "one"}})
    with LyingRegistry("app", "1", IMAGE) as registry, LyingRegistry("app", "1", other) as second_registry:
        registry.answers[LAYER] = stalling(DATA[:1000], len(DATA), release)
        async with managing(tmp_path) as manager:
            first = asyncio.create_task(_pull(manager, registry.netloc))
            await _asked_for(registry, LAYER)
            second = asyncio.create_task(_pull(manager, second_registry.netloc))
            await _asked_for(second_registry, f"/v2/app/blobs/{other.id}")
            first.cancel()
            assert (await second).id == other.id
        release.set()


@asynccontextmanager
async def _small_disk(tmp_path: Path, megabytes: int) -> AsyncIterator[Path]:
    small = tmp_path / "small"
    small.mkdir()
    options = f"size={megabytes}m"
    await asyncio.to_thread(
        subprocess.run, ["mount", "-t", "tmpfs", "-o", options, "xenpod-test", str(small)], check=True
    )
    try:
        yield small
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", str(small)], check=True)


def _fill(path: Path) -> None:
    with pytest.raises(OSError, match="No space left"), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.root
async def test_pull_on_a_full_disk_fails_without_remains(tmp_path: Path) -> None:
    noise = build([packed(Layer().file("f", bytes(range(256)) * 40_000).tar(), "")])
    async with _small_disk(tmp_path, 6) as small:
        with LyingRegistry("app", "1", noise) as registry:
            async with managing(small) as manager:
                with pytest.raises(Exhausted, match="disk is full"):
                    await _pull(manager, registry.netloc)
                assert _leftovers(manager) == []
                registry.answers |= LyingRegistry("app", "1", build([Layer().file("f").tar()])).answers
                await _pull(manager, registry.netloc)


@pytest.mark.root
async def test_images_are_removed_from_a_full_disk(tmp_path: Path) -> None:
    """Or nothing could make the disk less full."""
    images = [build([Layer().file(f"f{number}", bytes([number]) * 9000).tar()]) for number in range(12)]
    async with _small_disk(tmp_path, 6) as small, managing(small) as manager:
        for number, image in enumerate(images):
            with LyingRegistry("app", str(number), image) as registry:
                await manager.pull(names.parse(f"{registry.netloc}/app:{number}"), ANONYMOUS)
        _fill(small / "filler")
        with LyingRegistry("app", "1", build([Layer().file("g", b"x" * 9000).tar()])) as registry:
            with pytest.raises(Exhausted, match="disk is full"):
                await _pull(manager, registry.netloc)
        for stored in manager.store.images():
            await manager.remove(stored.id)
            _fill(small / f"more-{stored.id[7:]}")
        assert manager.store.images() == [] and _leftovers(manager) == []


@pytest.mark.root
async def test_disk_without_room_for_the_filesystem_fails_the_pull(tmp_path: Path) -> None:
    noise = build([packed(Layer().file("f", random.Random(1).randbytes(5 << 20)).tar(), "")])
    async with _small_disk(tmp_path, 8) as small:
        with LyingRegistry("app", "1", noise) as registry:
            async with managing(small) as manager:
                with pytest.raises(Exhausted, match="disk is full"):
                    await _pull(manager, registry.netloc)
                assert _leftovers(manager) == []


PULL = """
import asyncio, sys
from pathlib import Path
from images.registry import names
from images.registry.credentials import ANONYMOUS
from images.manager import ImageManager
from images.image_settings import ImageSettings
async def main():
    manager = ImageManager(ImageSettings(Path(sys.argv[1]), Path(sys.argv[1]) / "certs.d"))
    await manager.start()
    print("ready", flush=True)
    image = await manager.pull(names.parse(sys.argv[2]), ANONYMOUS)
    print("pulled", image.id, flush=True)
    await manager.stop()
asyncio.run(main())
"""


@pytest.mark.parametrize("moment", range(6))
async def test_killed_in_the_middle_of_a_pull(tmp_path: Path, moment: int) -> None:
    layers = [Layer().file(f"f{n}", (b"%d" % n) * 400_000).tar() for n in range(4)]
    image = build(layers)
    with LyingRegistry("app", "1", image) as registry:
        command = [sys.executable, "-c", PULL, str(tmp_path), f"{registry.netloc}/app:1"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        # Any moment will do; these are spread over a pull of about a quarter of a second.
        await asyncio.sleep(moment * 0.05)
        with suppress(ProcessLookupError):  # already done
            process.send_signal(signal.SIGKILL)
        await process.wait()
        async with managing(tmp_path) as manager:
            assert list(manager.store.files.ingest.iterdir()) == []
            # Without the image only verified layers are left, which are not fetched again.
            layers_of = {digest(layer.data)[7:] for layer in image.layers}
            left = {path.name for path in _leftovers(manager)}
            assert manager.store.images() or left <= layers_of
            registry.requests.clear()
            assert (await _pull(manager, registry.netloc)).id == image.id
            assert not left.intersection(path.rpartition(":")[2] for path in registry.paths())


def _realm(accept: Callable[[BaseHTTPRequestHandler], bool], asked: list[dict[str, list[str]]]) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(parse_qs(urlsplit(handler.path).query))
        if accept(handler):
            content(json.dumps({"token": "the-token"}).encode())(handler)
        else:
            status(401)(handler)

    return answer


def _guarded(registry: LyingRegistry, realm: str) -> None:
    challenge = f'Bearer realm="{realm}",service="the service",scope="repository:app:pull"'

    def guard(inner: Answer) -> Answer:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            if handler.headers.get("Authorization") == "Bearer the-token":
                inner(handler)
            else:
                status(401, WWW_Authenticate=challenge)(handler)

        return answer

    registry.answers = {path: guard(answer) for path, answer in registry.answers.items()}


BASIC = "Basic " + base64.b64encode(b"user:se:cret").decode()


@pytest.mark.parametrize(
    ("credentials", "accept", "works"),
    [
        (ANONYMOUS, lambda h: "Authorization" not in h.headers, True),
        (Credentials("user", "se:cret"), lambda h: h.headers.get("Authorization") == BASIC, True),
        (Credentials("user", "wrong"), lambda h: h.headers.get("Authorization") == BASIC, False),
        (Credentials(identity_token="refresh"), lambda h: b"refresh_token=refresh" in h.body, True),
        (Credentials(registry_token="the-token"), lambda h: False, True),
        (Credentials(registry_token="other"), lambda h: False, False),
    ],
    ids=[
        "anonymous",
        "password",
        "wrong password",
        "identity token",
        "registry token",
        "wrong registry token",
    ],
)
async def test_bearer_token_is_obtained_by_right_credentials_alone(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    credentials: Credentials,
    accept: Callable[[BaseHTTPRequestHandler], bool],
    works: bool,
) -> None:
    asked: list[dict[str, list[str]]] = []
    caplog.set_level(logging.DEBUG)
    with LyingRegistry("app", "1", IMAGE) as registry:
        _guarded(registry, f"http://{registry.netloc}/token")
        registry.answers["/token"] = _realm(accept, asked)
        async with managing(tmp_path) as manager:
            if works:
                assert (await _pull(manager, registry.netloc, credentials)).id == IMAGE.id
            else:
                with pytest.raises(Denied):
                    await _pull(manager, registry.netloc, credentials)
    if asked and not credentials.identity_token:
        assert asked[0] == {"service": ["the service"], "scope": ["repository:app:pull"]}
    for secret in ("se:cret", BASIC, "refresh-", "the-token", "wrong"):
        assert secret not in caplog.text


async def test_credentials_do_not_follow_a_redirect(tmp_path: Path) -> None:
    with LyingRegistry("other", "1", IMAGE) as elsewhere, LyingRegistry("app", "1", IMAGE) as registry:
        _guarded(registry, f"http://{registry.netloc}/token")
        registry.answers["/token"] = _realm(lambda h: True, [])
        target = f"http://{elsewhere.netloc}{LAYER.replace('app', 'other')}"
        inner = registry.answers[LAYER]

        def redirect(handler: BaseHTTPRequestHandler) -> None:
            if handler.headers.get("Authorization") != "Bearer the-token":
                inner(handler)
            else:
                status(307, Location=target)(handler)

        registry.answers[LAYER] = redirect
        (tmp_path / "certs.d" / registry.netloc).mkdir(parents=True)
        hosts = f'server = "http://{registry.netloc}"\n[header]\nx-secret = "hidden"\n'
        (tmp_path / "certs.d" / registry.netloc / "hosts.toml").write_text(hosts)
        async with managing(tmp_path) as manager:
            await _pull(manager, registry.netloc, Credentials("user", "se:cret"))
        assert all(
            "X-Secret" in {k.title() for k in headers}
            for _, _, headers in registry.requests
            if "token" not in _
        )
        for _, _, headers in elsewhere.requests:
            assert not {"authorization", "x-secret"} & {name.lower() for name in headers}
        assert elsewhere.requests
