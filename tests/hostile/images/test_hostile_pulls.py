"""Registries and images that hold up, or fail, other tenants' pulls."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from daemonkit.faults import Missing
from images.image_errors import Corrupt, Interrupted
from images.image_settings import ImageSettings
from images.manager import PULLS_PER_NAMESPACE, ImageManager
from images.pull.build import FilesystemBuilder
from images.pull.pulls import MAX_PULLS
from images.registry import names
from images.registry.credentials import ANONYMOUS, Credentials
from images.store.image_files import LEAST_PARTIAL_BYTES
from tests.support.cri.cri_daemons import CriNode, needs_node
from tests.support.images.image_manager import running
from tests.support.images.images import BuiltImage, Layer, build, digest, packed
from tests.support.images.registry import Answer, LyingRegistry, content, status
from tests.support.waiting import until
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

needs_converter = pytest.mark.skipif(shutil.which("tar2sqfs") is None, reason="tar2sqfs is not installed")
IMAGE = build([packed(Layer().dir("etc").file("etc/passwd", bytes(range(256)) * 40_000).tar(), "")])
OTHER = build([packed(Layer().file("other", b"x" * 1000).tar(), "")])
DATA = IMAGE.layers[0].data
LAYER = digest(DATA)


class _Held:
    """Waiting answers; ``asked`` counts them."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self._release = threading.Event()

    def before(self, then: Answer) -> Answer:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            self.asked.release()
            self._release.wait(300)
            then(handler)

        return answer

    def after(self, begin: bytes, then: bytes) -> Answer:
        """Gives the beginning at once, and the rest when it is released."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(begin) + len(then)))
            handler.end_headers()
            handler.wfile.write(begin)
            handler.wfile.flush()
            self.asked.release()
            self._release.wait(300)
            handler.wfile.write(then)

        return answer

    def release(self) -> None:
        self._release.set()

    async def until_asked(self, times: int = 1) -> None:
        for _ in range(times):
            assert await asyncio.to_thread(self.asked.acquire, timeout=120)

    def asked_again(self) -> bool:
        return self.asked.acquire(blocking=False)


@pytest.fixture
def held() -> Iterator[_Held]:
    made = _Held()
    yield made
    made.release()


@contextmanager
def _registries(image: BuiltImage, held: _Held, count: int = 2) -> Iterator[list[LyingRegistry]]:
    with ExitStack() as stack:
        # Before the servers end, since the servers wait for their answers.
        made = [stack.enter_context(LyingRegistry("app", "1", image)) for _ in range(count)]
        stack.callback(held.release)
        yield made


@asynccontextmanager
async def _managing(folder: Path, **more: object) -> AsyncIterator[ImageManager]:
    quick: dict[str, object] = {"connect_seconds": 30, "retry_seconds": 0.01, "tries_per_host": 1}
    async with running(ImageSettings(folder, folder / "certs.d", **(quick | more))) as manager:  # type: ignore[arg-type]
        yield manager


def _pull(
    manager: ImageManager, registry: LyingRegistry, repository: str = "app", secret: Credentials = ANONYMOUS
) -> asyncio.Task[object]:
    return asyncio.create_task(manager.pull(names.parse(f"{registry.netloc}/{repository}:1"), secret))


def _blob(registry: LyingRegistry, answer: Answer, repository: str = "app") -> None:
    registry.answers[f"/v2/{repository}/blobs/{LAYER}"] = answer


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path)
    await made.start()
    yield made
    await made.close()


@pytest.mark.root
@needs_node
async def test_layer_trickled_by_another_registry_delays_nobody(node: CriNode, held: _Held) -> None:
    with _registries(IMAGE, held) as (hostile, honest):
        _blob(hostile, held.after(DATA[:4096], DATA[4096:]))
        async with node.client() as client:
            hostage = asyncio.create_task(client.pull(f"{hostile.netloc}/app:1"))
            await held.until_asked()
            assert await client.pull(f"{honest.netloc}/app:1") == IMAGE.id
            # The verified bytes also serve the other pull, and its own download ends.
            assert await hostage == IMAGE.id


@needs_converter
async def test_the_failure_of_another_registry_is_not_shared(tmp_path: Path, held: _Held) -> None:
    with _registries(IMAGE, held) as (hostile, honest):
        _blob(hostile, content(bytes(len(DATA))))
        _blob(honest, held.before(content(DATA)))
        async with _managing(tmp_path) as manager:
            good = _pull(manager, honest)
            await held.until_asked()
            with pytest.raises(Corrupt):
                await _pull(manager, hostile)
            held.release()
            await good


@needs_converter
async def test_the_failure_of_another_repository_is_not_shared(tmp_path: Path, held: _Held) -> None:
    """Pulls of a registry share downloads, but no failure."""
    with _registries(IMAGE, held, 1) as (registry,):
        registry.add("evil", "1", IMAGE)
        _blob(registry, held.before(status(404)), "evil")
        async with _managing(tmp_path) as manager:
            bad = _pull(manager, registry, "evil")
            await held.until_asked()
            good = _pull(manager, registry)
            await until(lambda: sum(len(pull.layers) for pull in manager.pulls.snapshots()) >= 2)
            held.release()
            with pytest.raises(Missing):
                await bad
            await good


@needs_converter
async def test_callers_with_other_credentials_do_not_wait_for_each_others_bytes(
    tmp_path: Path, held: _Held
) -> None:
    with _registries(IMAGE, held, 1) as (registry,):
        registry.add("evil", "1", IMAGE)
        _blob(registry, held.after(DATA[:4096], DATA[4096:]), "evil")
        async with _managing(tmp_path) as manager:
            bad = _pull(manager, registry, "evil", Credentials("mallory", "secret"))
            await held.until_asked()
            await _pull(manager, registry)
            await bad


@needs_converter
async def test_part_of_another_registry_is_not_continued(tmp_path: Path, held: _Held) -> None:
    held.release()
    size = 2 * LEAST_PARTIAL_BYTES
    with _registries(IMAGE, held) as (hostile, honest):
        # Garbage that breaks off: a part is kept for the next pull of the same registry.
        _blob(hostile, content(bytes(size), length=len(DATA)))
        async with _managing(tmp_path) as manager:
            with pytest.raises(Interrupted):
                await _pull(manager, hostile)
            assert [path.stat().st_size for path in manager.store.files.partial()] == [size]
            await _pull(manager, honest)
        ranges = [headers.get("Range") for _, path, headers in honest.requests if path.endswith(LAYER)]
        assert ranges == [None]


def _slow(registry: LyingRegistry, held: _Held, count: int) -> None:
    for number in range(count):
        registry.answers[f"/v2/x{number}/manifests/1"] = held.before(status(404))


async def _pull_for(client: Client, image: str, namespace: str) -> str:
    pod = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="p", namespace=namespace, uid="u"))
    request = cri.PullImageRequest(image=cri.ImageSpec(image=image), sandbox_config=pod)
    return (await client.image.PullImage(request, timeout=120)).image_ref


async def _end(tasks: list[asyncio.Task[str]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.root
@needs_node
async def test_slow_manifests_of_one_registry_leave_pulls_to_the_others(node: CriNode, held: _Held) -> None:
    with _registries(IMAGE, held) as (hostile, honest):
        _slow(hostile, held, MAX_PULLS + 1)
        async with node.client() as client:
            pulls = [
                asyncio.create_task(client.pull(f"{hostile.netloc}/x{number}:1"))
                for number in range(MAX_PULLS + 1)
            ]
            await held.until_asked(MAX_PULLS // 2)
            assert await client.pull(f"{honest.netloc}/app:1") == IMAGE.id
            assert not held.asked_again()
            await _end(pulls)


@pytest.mark.root
@needs_node
async def test_slow_registries_of_one_namespace_leave_pulls_to_the_others(node: CriNode, held: _Held) -> None:
    """As many registries as pulls, all named by pods of a single namespace."""
    with _registries(IMAGE, held, MAX_PULLS + 1) as (honest, *hostile):
        for registry in hostile:
            _slow(registry, held, 1)
        async with node.client() as client:
            pulls = [
                asyncio.create_task(_pull_for(client, f"{registry.netloc}/x0:1", "evil"))
                for registry in hostile
            ]
            await held.until_asked(PULLS_PER_NAMESPACE)
            assert await _pull_for(client, f"{honest.netloc}/app:1", "honest") == IMAGE.id
            assert not held.asked_again()
            await _end(pulls)


@needs_converter
async def test_conversions_of_one_registrys_images_leave_some_to_the_others(
    tmp_path: Path, held: _Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hostile image takes all the time that a conversion may take."""
    convert: Callable[..., None] = FilesystemBuilder._convert
    evil = [build([packed(Layer().file(f"f{number}", b"x" * 1000).tar(), "")]) for number in range(8)]
    hostile_ids = {digest(image.manifest) for image in evil}
    converting = threading.Semaphore(0)
    release = threading.Event()

    def slow(builder: FilesystemBuilder, image, *more) -> None:  # type: ignore[no-untyped-def]
        if image.subject in hostile_ids:
            converting.release()
            assert release.wait(300)
        convert(builder, image, *more)

    monkeypatch.setattr(FilesystemBuilder, "_convert", slow)
    with _registries(IMAGE, held) as (hostile, honest):
        for number, image in enumerate(evil):
            hostile.add(f"evil{number}", "1", image)
        honest.add("other", "1", OTHER)
        async with _managing(tmp_path) as manager:
            bad = [_pull(manager, hostile, f"evil{number}") for number in range(len(evil))]
            for _ in range(manager.settings.conversions):
                assert await asyncio.to_thread(converting.acquire, timeout=120)
            await asyncio.gather(_pull(manager, honest), _pull(manager, honest, "other"))
            assert not converting.acquire(blocking=False)
            release.set()
            await asyncio.gather(*bad)


@needs_converter
async def test_filesystem_waiting_in_a_hostile_queue_is_built_at_once(
    tmp_path: Path, held: _Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile registry has the honest image, too, and its own share of conversions is used up."""
    convert: Callable[..., None] = FilesystemBuilder._convert
    started, release = threading.Semaphore(0), threading.Event()
    hostile_thread: set[str] = set()

    def slow(builder: FilesystemBuilder, image, *more) -> None:  # type: ignore[no-untyped-def]
        if not hostile_thread:
            hostile_thread.add(image.subject)
            started.release()
            assert release.wait(300)
        convert(builder, image, *more)

    monkeypatch.setattr(FilesystemBuilder, "_convert", slow)
    with _registries(IMAGE, held) as (hostile, honest):
        async with _managing(tmp_path) as manager:
            bad = _pull(manager, hostile)
            assert await asyncio.to_thread(started.acquire, timeout=120)
            await _pull(manager, honest)
            release.set()
            await bad


async def test_error_of_a_pull_names_its_own_registry(tmp_path: Path, held: _Held) -> None:
    held.release()
    with _registries(IMAGE, held) as registries:
        for registry in registries:
            _blob(registry, status(404))
        async with _managing(tmp_path) as manager:
            pulls = [_pull(manager, registry) for registry in registries]
            said = await asyncio.gather(*pulls, return_exceptions=True)
    for registry, error in zip(registries, said, strict=True):
        assert registry.netloc in str(error)
