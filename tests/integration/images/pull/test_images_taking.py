"""Images taken over from containerd's content store, through the whole image part."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from cri.delegate.images.content import ContentSource, target_of
from daemonkit.faults import Denied, Exhausted, Fault, Missing, Refused
from daemonkit.rpc.client import channel
from images.bounds.limits import ImageLimits
from images.errors import Rejected
from images.manager import ImageManager
from images.pull.taking import OfferedImage
from images.registry import names
from images.registry.credentials import ANONYMOUS
from images.registry.manifests import Descriptor
from images.settings import ImageSettings, PolicySettings
from images.store.catalogue import StoredImage
from tests.support.images import registry as registries
from tests.support.images.image_manager import running
from tests.support.images.images import BuiltImage, Layer, build, digest, index_of
from tests.support.images.registry import INDEX, Registry
from tests.support.images.scripted_containerd import ScriptedContainerd, serving
from xenpod_proto.containerd import images_pb2

NAME = "registry.example/app/web:1"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registries.running(tmp_path_factory.mktemp("registry")) as running:
        yield running


def _image(seed: int = 0, size: int = 3 << 20) -> BuiltImage:
    data = random.Random(seed).randbytes(size)
    layers = [Layer().dir("etc").file("etc/passwd", b"root:x:0:0\n").tar(), Layer().file("data", data).tar()]
    return build(layers, {"Cmd": ["/bin/true"]})


class _Node:
    """A containerd, our image part, and the channel between them."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.containerd = ScriptedContainerd()
        made = ImageSettings(folder / "state", folder / "certs.d", connect_seconds=30)
        self.settings = replace(made, **settings)
        self.socket = folder / "containerd.sock"

    async def __aenter__(self) -> _Node:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(serving(self.containerd, self.socket))
            self.manager: ImageManager = await stack.enter_async_context(running(self.settings))
            self.channel: grpc.aio.Channel = channel(self.socket)
            stack.push_async_callback(self.channel.close, None)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def take(self, image_id: str, *known: str, stall: float = 60) -> StoredImage:
        target = await target_of(self.channel, image_id)
        assert target is not None
        source = ContentSource(self.channel, "containerd", stall)
        return await self.manager.take(OfferedImage(image_id, target, _parsed(*known), source))


def _parsed(*known: str) -> tuple[names.Reference, ...]:
    return tuple(map(names.parse, known))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[_Node]:
    async with _Node(tmp_path) as made:
        yield made


async def test_an_image_comes_whole_from_the_content_store(node: _Node) -> None:
    image = _image()
    node.containerd.add(image, NAME)
    stored = await node.take(image.id, NAME)
    assert stored.id == image.id
    assert stored.repo_tags == (NAME,)
    assert stored.repo_digests == (f"registry.example/app/web@{digest(image.manifest)}",)
    kept = {digest: node.manager.store.files.blob_path(digest).read_bytes() for digest in image.blobs
            if digest != image.id}  # fmt: skip
    assert kept == {name: data for name, data in image.blobs.items() if name != image.id}


async def test_behind_an_index_the_image_of_this_platform_is_taken(node: _Node) -> None:
    image = _image()
    node.containerd.add(image)
    index = index_of([image.descriptor])
    node.containerd.blobs[digest(index)] = index
    node.containerd.targets[image.id] = images_pb2.Descriptor(
        media_type=INDEX, digest=digest(index), size=len(index)
    )
    stored = await node.take(image.id, NAME)
    assert (stored.id, stored.repo_digests) == (image.id, (f"registry.example/app/web@{digest(index)}",))


async def test_layers_that_it_discarded_come_from_the_registry(node: _Node, registry: Registry) -> None:
    image = _image(1)
    registry.push("app/discarded", "1", image)
    name = f"{registry.netloc}/app/discarded:1"
    node.containerd.add(image, name, blobs=False)
    assert (await node.take(image.id, name)).id == image.id


async def test_what_neither_has_is_said_with_both_names(node: _Node, registry: Registry) -> None:
    image = _image(2)
    name = f"{registry.netloc}/app/gone:1"
    node.containerd.add(image, name, blobs=False)
    with pytest.raises(Missing, match=f"{registry.netloc}.*tried too:.*containerd: it does not keep"):
        await node.take(image.id, name)
    assert node.manager.store.find(image.id) is None


@pytest.mark.parametrize("which", ["manifest", "config", "layer"])
@pytest.mark.parametrize("how", ["other", "short", "long"])
async def test_wrong_bytes_of_it_are_never_believed(
    node: _Node, registry: Registry, which: str, how: str
) -> None:
    image = _image(3)
    registry.push("app/sound", "1", image)
    name = f"{registry.netloc}/app/sound:1"
    node.containerd.add(image, name)
    where = {"manifest": digest(image.manifest), "config": image.id, "layer": digest(image.layers[1].data)}
    sound = node.containerd.blobs[where[which]]
    wrong = {"other": sound[:-1] + bytes([sound[-1] ^ 1]), "short": sound[:-1], "long": sound + b"x"}
    node.containerd.blobs[where[which]] = wrong[how]
    stored = await node.take(image.id, name)
    assert stored.id == image.id
    assert (
        node.manager.store.files.blob_path(digest(image.layers[1].data)).read_bytes() == image.layers[1].data
    )
    # Without a registry nothing is left to be believed.
    await node.manager.remove(image.id)
    nowhere = "127.0.0.1:1/app/sound:1"
    with pytest.raises(Fault):
        await node.take(image.id, nowhere)


async def test_another_image_than_was_promised_is_refused(node: _Node) -> None:
    promised, other = _image(4), _image(5)
    node.containerd.add(other, NAME)
    node.containerd.targets[promised.id] = node.containerd.targets[NAME]
    with pytest.raises(Refused, match=f"for this platform it is {other.id}"):
        await node.take(promised.id, NAME)
    assert node.manager.store.images() == []


async def test_a_stream_that_stands_still_ends(node: _Node) -> None:
    image = _image(6)
    node.containerd.add(image, NAME)
    silent = digest(image.layers[1].data)
    held = asyncio.Event()

    class Silent(dict[str, bytes]):
        def __getitem__(self, key: str) -> bytes:
            if key == silent:
                held.set()
                return _Endless()
            return super().__getitem__(key)

    node.containerd.blobs = Silent(node.containerd.blobs)
    with pytest.raises(Fault) as caught:
        await node.take(image.id, "127.0.0.1:1/app/web:1", stall=0.5)
    assert held.is_set() and "0 bytes in 0 s" in str(caught.value)


class _Endless(bytes):
    """A blob of empty messages."""

    def __len__(self) -> int:
        return 1 << 60

    def __getitem__(self, key: Any) -> Any:
        return b""


async def test_limits_hold(tmp_path: Path) -> None:
    async with _Node(tmp_path, limits=ImageLimits(layer_bytes=1 << 20)) as node:
        image = _image(7)
        node.containerd.add(image, NAME)
        with pytest.raises(Exhausted, match="images.limits.layer_bytes"):
            await node.take(image.id, NAME)


async def test_a_name_that_is_denied_is_not_given(tmp_path: Path) -> None:
    async with _Node(tmp_path, policy=PolicySettings(deny=("registry.example/**",))) as node:
        image = _image(8)
        node.containerd.add(image, NAME)
        with pytest.raises(Denied, match=r"images.policy.deny has"):
            await node.take(image.id, NAME)
        with pytest.raises(Denied, match="it has no name"):
            await node.take(image.id)
        stored = await node.take(image.id, NAME, "mirror.example/web:1")
        assert stored.repo_tags == ("mirror.example/web:1",)


async def test_verifiers_are_asked(tmp_path: Path) -> None:
    verifiers = tmp_path / "verifiers"
    verifiers.mkdir()
    program = verifiers / "no"
    program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\necho unsigned\nexit 1\n')
    program.chmod(0o755)
    async with _Node(tmp_path, policy=PolicySettings(verifier_dir=verifiers)) as node:
        image = _image(9)
        node.containerd.add(image, NAME)
        with pytest.raises(Rejected, match="unsigned"):
            await node.take(image.id, NAME)
    asked = (tmp_path / "asked").read_text()
    assert f"-name {NAME} -digest {digest(image.manifest)}" in asked


async def test_a_tag_of_another_image_here_stays_with_it(node: _Node, registry: Registry) -> None:
    newer, older = _image(10), _image(11)
    registry.push("app/moved", "1", newer)
    name = f"{registry.netloc}/app/moved:1"
    from_registry = await node.manager.pull(names.parse(name), ANONYMOUS)
    node.containerd.add(older, name)
    taken = await node.take(older.id, name)
    assert taken.repo_tags == () and len(taken.repo_digests) == 1
    assert node.manager.store.resolve(name).id == from_registry.id == newer.id


async def test_two_who_want_it_share_the_work(node: _Node) -> None:
    image = _image(12)
    node.containerd.add(image, NAME)
    first, second = await asyncio.gather(node.take(image.id, NAME), node.take(image.id, NAME))
    assert first.id == second.id == image.id
    assert len(node.manager.store.images()) == 1


async def test_a_cancelled_caller_leaves_nothing_behind(node: _Node) -> None:
    image = _image(13)
    node.containerd.add(image, NAME)
    begun = asyncio.Event()

    class Slow(dict[str, bytes]):
        def __getitem__(self, key: str) -> bytes:
            if key == digest(image.layers[1].data):
                begun.set()
                return _Endless()
            return super().__getitem__(key)

    node.containerd.blobs = Slow(node.containerd.blobs)
    taking = asyncio.create_task(node.take(image.id, NAME))
    async with asyncio.timeout(60):
        await begun.wait()
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        await node.manager.pulls.drain()
    assert node.manager.store.images() == []


async def test_a_proper_target_is_asked_for(node: _Node) -> None:
    assert await target_of(node.channel, "sha256:" + "0" * 64) is None
    node.containerd.targets["odd"] = images_pb2.Descriptor(digest="md5:1", size=1)
    with pytest.raises(Refused, match="no valid digest"):
        await target_of(node.channel, "odd")


async def test_a_delegate_without_content_store_has_no_targets(tmp_path: Path) -> None:
    async with serving(ScriptedContainerd(), tmp_path / "s", stores=False):
        link = channel(tmp_path / "s")
        assert await target_of(link, "anything") is None
        await link.close(None)


async def test_a_blob_is_read_on_from_its_middle(node: _Node) -> None:
    data = random.Random(14).randbytes(5 << 20)
    node.containerd.blobs[digest(data)] = data
    source = ContentSource(node.channel, "containerd", 60)
    promise = Descriptor("layer", digest(data), len(data))

    def read(token: Any) -> tuple[bytes, int]:
        with source.blob(promise, token, 1 << 20) as chunks:
            pieces = list(chunks)
        return b"".join(pieces), max(map(len, pieces))

    got, largest = await node.manager._threads.run(read)
    assert got == data[1 << 20 :]
    assert largest < 2 << 20
