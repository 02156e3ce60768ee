"""A cancelled pull ends at once, at any place where its registry keeps silent."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from images.image_settings import ImageSettings
from images.registry import names
from images.registry.credentials import ANONYMOUS
from tests.support.images.image_manager import running
from tests.support.images.images import Layer, build, digest
from tests.support.images.registry import Answer, LyingRegistry, stalling, status

pytestmark = pytest.mark.skipif(shutil.which("tar2sqfs") is None, reason="tar2sqfs is not installed")
IMAGE = build([Layer().file("etc", b"x" * 300_000).tar()])
LAYER = f"/v2/app/blobs/{digest(IMAGE.layers[0].data)}"
CONFIG = f"/v2/app/blobs/{IMAGE.id}"
MANIFEST = "/v2/app/manifests/1"
TOKEN = "/token"
LONG = 3600.0
"""Seconds that the settings let a registry be silent: longer than any test lasts."""


def _mute(release: threading.Event, data: bytes) -> Answer:
    """Says nothing, not even a status."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        release.wait(300)
        handler.close_connection = True

    return answer


def _begun(release: threading.Event, data: bytes) -> Answer:
    return stalling(data[:20], len(data), release)


def _last_of_its_connection(release: threading.Event, data: bytes) -> Answer:
    """http.client lets go of a connection during its last answer."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(data[:20])
        handler.wfile.flush()
        release.wait(300)

    return answer


def _challenge(handler: BaseHTTPRequestHandler) -> None:
    realm = f"http://{handler.headers['Host']}{TOKEN}"
    status(401, WWW_Authenticate=f'Bearer realm="{realm}",service="s"')(handler)


@pytest.mark.parametrize("path", [MANIFEST, CONFIG, LAYER, TOKEN])
@pytest.mark.parametrize("how", [_mute, _begun, _last_of_its_connection], ids=lambda how: how.__name__)
async def test_pull_from_a_silent_registry_ends_when_cancelled(
    tmp_path: Path, path: str, how: Callable[[threading.Event, bytes], Answer]
) -> None:
    release = threading.Event()
    with LyingRegistry("app", "1", IMAGE) as registry:
        if path == TOKEN:
            registry.answers[MANIFEST] = _challenge
        registry.answers[path] = how(release, IMAGE.blobs.get(path.rpartition("/")[2], IMAGE.manifest))
        try:
            await _cancelled(tmp_path, registry.netloc, lambda: path in registry.paths())
        finally:
            release.set()


async def test_pull_with_an_unanswered_tls_handshake_ends_when_cancelled(tmp_path: Path) -> None:
    with _taking() as (netloc, taken):
        certs = tmp_path / "certs.d" / netloc
        certs.mkdir(parents=True)
        (certs / "hosts.toml").write_text(f'server = "https://{netloc}"\n')
        await _cancelled(tmp_path, netloc, lambda: taken)


async def _cancelled(directory: Path, netloc: str, silent: Callable[[], object]) -> None:
    """Begin a pull, and cancel the pull once the registry is silent: the pull has ended, and left nothing."""
    settings = ImageSettings(directory, directory / "certs.d", connect_seconds=LONG, stall_seconds=LONG)
    async with running(settings) as manager:
        pull = asyncio.create_task(manager.pull(names.parse(f"{netloc}/app:1"), ANONYMOUS))
        async with asyncio.timeout(60):
            while not silent():  # noqa: ASYNC110 - the registry answers in threads
                assert not pull.done()
                await asyncio.sleep(0.01)
            # Mostly the thread waits for the answer by now; an earlier cancellation must do no harm.
            await asyncio.sleep(0.1)
            pull.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pull
            await manager.pulls.drain()
        assert list(manager.store.files.ingest.iterdir()) == []


@contextmanager
def _taking() -> Iterator[tuple[str, list[bytes]]]:
    """A port that takes handshakes, and answers none: the netloc, and the received bytes."""
    taken: list[bytes] = []
    connected: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            while True:
                try:
                    one, _ = listener.accept()
                except OSError:
                    return  # the test is over
                connected.append(one)
                taken.append(one.recv(1 << 16))

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", taken
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in connected:
                one.close()
