"""Mirrors with every kind of failure: a pull of many objects asks each mirror once, and goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from images.image_settings import ImageSettings
from images.registry import names
from images.registry.credentials import ANONYMOUS
from tests.support.images.http_server import dropping_connections
from tests.support.images.image_manager import running
from tests.support.images.images import Layer, build, digest
from tests.support.images.registry import Answer, LyingRegistry, stalling, status

LAYERS = 6
IMAGE = build([Layer().file(f"file{number}", bytes([number]) * 5000).tar() for number in range(LAYERS)])
OTHER = build([Layer().file("other", b"other").tar()])
# A test that waited this long would be ended by its own timeout.
FOR_EVER = 3600.0


def _mirrored(
    directory: Path, host: str, *mirrors: str, dial_timeout: str = "", stall: float = 60.0
) -> ImageSettings:
    (directory / "certs.d" / host).mkdir(parents=True)
    text = f'server = "http://{host}"\n'
    for mirror in mirrors:
        text += f'[host."http://{mirror}"]\ncapabilities = ["pull", "resolve"]\n'
        text += f'dial_timeout = "{dial_timeout}"\n' if dial_timeout else ""
    (directory / "certs.d" / host / "hosts.toml").write_text(text)
    return ImageSettings(
        directory / "state",
        directory / "certs.d",
        connect_seconds=FOR_EVER,
        stall_seconds=stall,
        retry_seconds=FOR_EVER,
        retry_most_seconds=FOR_EVER,
    )


def _never(release: threading.Event) -> Answer:
    def answer(handler: object) -> None:
        release.wait(300)

    return answer


@pytest.mark.parametrize("how", ["500", "never answers", "stalls", "404"])
async def test_a_failing_mirror_is_asked_once(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, each of an image's eight objects was asked of it, with every retry."""
    release = threading.Event()
    answers: dict[str, Callable[[], Answer]] = {
        "500": lambda: status(500),
        "never answers": lambda: _never(release),
        "stalls": lambda: stalling(b"{", 100, release),
        "404": lambda: status(404),
    }
    with LyingRegistry("app", "1", IMAGE) as mirror, LyingRegistry("app", "1", IMAGE) as registry:
        mirror.answers = dict.fromkeys(mirror.answers, answers[how]())
        try:
            # Enough for the registry on this machine, also under load.
            stall = 5.0 if how in ("never answers", "stalls") else 60.0
            settings = _mirrored(tmp_path, registry.netloc, mirror.netloc, stall=stall)
            async with running(settings) as manager:
                pulled = await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)
        finally:
            release.set()
    assert pulled.id == IMAGE.id
    assert mirror.paths() == ["/v2/app/manifests/1"]
    assert len(registry.paths()) == 2 + LAYERS
    lines = [record.getMessage() for record in caplog.records if mirror.netloc in record.getMessage()]
    assert len(lines) == 1
    assert "is asked last" in lines[0]


async def test_dial_timeout_is_honoured(tmp_path: Path) -> None:
    with dropping_connections() as mirror, LyingRegistry("app", "1", IMAGE) as registry:
        settings = _mirrored(tmp_path, registry.netloc, mirror, dial_timeout="300ms")
        async with running(settings) as manager:
            pulled = await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)
    assert pulled.id == IMAGE.id


@pytest.mark.parametrize(("code", "again"), [(500, []), (404, ["/v2/app/manifests/2"])])
async def test_the_next_pull_remembers_a_failed_host_but_not_a_missing_image(
    tmp_path: Path, code: int, again: list[str]
) -> None:
    with LyingRegistry("app", "1", IMAGE) as mirror, LyingRegistry("app", "1", IMAGE) as registry:
        mirror.answers = dict.fromkeys(mirror.answers, status(code))
        base = "/v2/app"
        registry.answers[f"{base}/manifests/2"] = registry.answers[f"{base}/manifests/1"]
        settings = _mirrored(tmp_path, registry.netloc, mirror.netloc)
        async with running(settings) as manager:
            await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)
            mirror.requests.clear()
            await manager.pull(names.parse(f"{registry.netloc}/app:2"), ANONYMOUS)
    assert mirror.paths() == again


async def test_failed_host_is_asked_if_no_other_host_has_the_image(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as mirror, LyingRegistry("none", "1", OTHER) as registry:
        good = mirror.answers
        mirror.answers = dict.fromkeys(good, status(503))
        settings = _mirrored(tmp_path, registry.netloc, mirror.netloc)
        async with running(settings) as manager:
            await manager.pull(names.parse(f"{registry.netloc}/none:1"), ANONYMOUS)
            mirror.answers = good
            pulled = await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)
    assert pulled.id == IMAGE.id


async def test_layer_missing_on_a_mirror_comes_from_the_next_host(tmp_path: Path) -> None:
    missing = f"/v2/app/blobs/{digest(IMAGE.layers[0].data)}"
    with LyingRegistry("app", "1", IMAGE) as mirror, LyingRegistry("app", "1", IMAGE) as registry:
        del mirror.answers[missing]
        settings = _mirrored(tmp_path, registry.netloc, mirror.netloc)
        async with running(settings) as manager:
            pulled = await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)
    assert pulled.id == IMAGE.id
    assert missing in registry.paths()
