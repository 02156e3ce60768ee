"""Number of concurrent downloads from one host, and for one image."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from images.image_settings import ImageSettings
from images.registry import names
from images.registry.credentials import ANONYMOUS
from tests.support.images.image_manager import running
from tests.support.images.images import Layer, build, digest, packed
from tests.support.images.registry import LyingRegistry

pytestmark = pytest.mark.skipif(shutil.which("tar2sqfs") is None, reason="tar2sqfs is not installed")
LAYERS = [packed(Layer().file(f"f{n}", random.Random(n).randbytes(5000)).tar()) for n in range(8)]
_LINGER = 0.3


class _Counter:
    """Answers that last until the allowed number is in flight, and a further request had its chance."""

    def __init__(self, allowed: int) -> None:
        self.peak = 0
        self._allowed, self._active = allowed, 0
        self._lock, self._full, self._over = threading.Lock(), threading.Event(), threading.Event()

    def around(
        self, answer: Callable[[BaseHTTPRequestHandler], None]
    ) -> Callable[[BaseHTTPRequestHandler], None]:
        def counted(handler: BaseHTTPRequestHandler) -> None:
            with self._lock:
                self._active += 1
                self.peak = max(self.peak, self._active)
                if self._active == self._allowed:
                    self._full.set()
                if self._active > self._allowed:
                    self._over.set()
            assert self._full.wait(60)
            self._over.wait(_LINGER)
            with self._lock:
                self._active -= 1
            answer(handler)

        return counted


@pytest.mark.parametrize(
    ("images", "layers", "downloads", "allowed"),
    [(4, 2, 1, 2), (1, 8, 3, 3), (2, 4, 3, 6)],
    ids=["of one host", "of one image", "of two images"],
)
async def test_concurrent_downloads_reach_and_keep_the_limit(
    tmp_path: Path, images: int, layers: int, downloads: int, allowed: int
) -> None:
    counter = _Counter(allowed)
    with LyingRegistry("app", "0", build(LAYERS[:layers])) as registry:
        for number in range(1, images):
            image = build(LAYERS[number * layers : (number + 1) * layers])
            registry.answers |= LyingRegistry("app", str(number), image).answers
        for layer in LAYERS:
            path = f"/v2/app/blobs/{digest(layer.data)}"
            if path in registry.answers:
                registry.answers[path] = counter.around(registry.answers[path])
        settings = ImageSettings(tmp_path, tmp_path / "certs.d", downloads_per_image=downloads)
        async with running(settings) as manager:
            wanted = [names.parse(f"{registry.netloc}/app:{number}") for number in range(images)]
            pulled = await asyncio.gather(*(manager.pull(name, ANONYMOUS) for name in wanted))
            assert len({image.id for image in pulled}) == images
    assert counter.peak == allowed
