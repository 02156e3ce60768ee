"""Names given and taken by an operator, filters, and what is pruned, behind a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from images.image_settings import ImageSettings, PolicySettings
from images.manager import ImageManager
from images.rpc.service import add_image_services
from tests.support.images.image_manager import running
from tests.support.images.images import BuiltImage, Layer, build, digest, write_layout
from xenpod_proto.cri.v1 import runtime_pb2, runtime_pb2_grpc
from xenpod_proto.images.v1 import images_pb2 as pb
from xenpod_proto.images.v1 import images_pb2_grpc

BASE = Layer().file("base", b"b" * 100_000).tar()
IMAGE = build([BASE], {"Labels": {"team": "blue"}})
OTHER = build([BASE, Layer().file("other").tar()], {"Labels": {"team": "red", "keep": "yes"}})
APP, SECOND = "example.com/app:1", "example.com/other:1"


class Node:
    def __init__(
        self, manager: ImageManager, socket: Path, images: images_pb2_grpc.ImagesAsyncStub, folder: Path
    ) -> None:
        self.manager, self.socket, self.images = manager, socket, images
        self._folder = folder

    async def add(self, image: BuiltImage, name: str) -> None:
        layout = write_layout(self._folder / name.replace("/", "_"), image, name)
        await self.images.Import(pb.ImportRequest(path=str(layout)))

    async def ids(self, *filters: str) -> set[str]:
        return {one.id for one in (await self.images.List(pb.ListRequest(filters=filters))).images}

    def tags(self, image: BuiltImage) -> tuple[str, ...]:
        return self.manager.store.resolve(image.id).repo_tags


@asynccontextmanager
async def serving(folder: Path, **policy: object) -> AsyncIterator[Node]:
    settings = ImageSettings(
        folder / "state",
        folder / "certs.d",
        pinned=("example.com/pinned/*",),
        policy=PolicySettings(**policy),  # type: ignore[arg-type]
    )
    async with running(settings) as manager:
        add = lambda server: add_image_services(server, manager)  # noqa: E731
        async with serve_unix(folder / "cri.sock", add, name="test", grace=0.1):
            async with channel(folder / "cri.sock") as link:
                yield Node(manager, folder / "cri.sock", images_pb2_grpc.ImagesStub(link), folder)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as made:
        await made.add(IMAGE, APP)
        await made.add(OTHER, SECOND)
        yield made


async def _code(call: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize("by", [APP, IMAGE.id, IMAGE.id[7:19], IMAGE.id[:15]])
async def test_image_is_tagged_by_name_id_or_prefix(node: Node, by: str) -> None:
    answer = await node.images.Tag(pb.TagRequest(image=by, name="mine"))
    assert (answer.name, answer.taken_from) == ("docker.io/library/mine:latest", "")
    assert sorted(answer.image.tags) == ["docker.io/library/mine:latest", APP]
    async with channel(node.socket) as link:
        asked = runtime_pb2.ImageStatusRequest(image=runtime_pb2.ImageSpec(image="mine:latest"))
        found = await runtime_pb2_grpc.ImageServiceStub(link).ImageStatus(asked)
        assert found.image.id == IMAGE.id
    # Once more is fine.
    assert not (await node.images.Tag(pb.TagRequest(image=by, name="mine"))).taken_from


async def test_a_name_is_taken_from_another_image(node: Node) -> None:
    answer = await node.images.Tag(pb.TagRequest(image=SECOND, name=APP))
    assert answer.taken_from == IMAGE.id
    assert node.tags(IMAGE) == () and node.tags(OTHER) == (APP, SECOND)


async def test_names_outlive_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        await node.add(IMAGE, APP)
        await node.images.Tag(pb.TagRequest(image=APP, name="example.com/new:1"))
        await node.images.Untag(pb.UntagRequest(name=APP))
    async with serving(tmp_path) as node:
        assert node.tags(IMAGE) == ("example.com/new:1",)


async def test_tag_under_a_pinned_name_pins_the_image(node: Node) -> None:
    answer = await node.images.Tag(pb.TagRequest(image=APP, name="example.com/pinned/app:1"))
    assert answer.image.pinned
    assert not (await node.images.Untag(pb.UntagRequest(name="example.com/pinned/app:1"))).image.pinned


async def test_invalid_tag_is_refused(node: Node) -> None:
    tag = node.images.Tag
    assert (await _code(tag(pb.TagRequest(image="example.com/none:1", name="a"))))[0].name == "NOT_FOUND"
    for image, name in ((APP, ""), ("", "a"), (APP, f"a@{IMAGE.id}"), (APP, "A B"), (APP, IMAGE.id[7:])):
        code, _ = await _code(tag(pb.TagRequest(image=image, name=name)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT, (image, name)
    assert node.tags(IMAGE) == (APP,)


async def test_untag_leaves_the_image(node: Node) -> None:
    by_digest = f"example.com/app@{digest(IMAGE.manifest)}"
    answer = await node.images.Untag(pb.UntagRequest(name=APP))
    assert (answer.name, list(answer.image.tags), list(answer.image.digests)) == (APP, [], [by_digest])
    answer = await node.images.Untag(pb.UntagRequest(name=by_digest))
    assert list(answer.image.digests) == []
    assert await node.ids() == {IMAGE.id, OTHER.id}
    for name in (APP, "example.com/none:1", IMAGE.id):
        code, _ = await _code(node.images.Untag(pb.UntagRequest(name=name)))
        assert code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
    assert not [event.faults async for event in node.images.Verify(pb.VerifyRequest()) if event.faults]


@pytest.mark.parametrize(
    ("lists", "name", "allowed"),
    [
        ({"deny": ("evil.example/*",)}, "evil.example/app:1", False),
        ({"deny": ("evil.example/*",)}, "good.example/app:1", True),
        ({"allow": ("good.example/*",)}, "good.example/app:1", True),
        ({"allow": ("good.example/*",)}, "example.com/more:1", False),
    ],
)
async def test_tag_does_not_lead_around_the_policy(
    tmp_path: Path, lists: dict[str, tuple[str, ...]], name: str, allowed: bool
) -> None:
    """A pod finds an image by its name without a pull: a denied name cannot be given."""
    async with serving(tmp_path, **lists) as node:
        await node.add(IMAGE, APP)
        tagging = node.images.Tag(pb.TagRequest(image=APP, name=name))
        if allowed:
            assert name in (await tagging).image.tags
        else:
            code, text = await _code(tagging)
            assert code is grpc.StatusCode.PERMISSION_DENIED and "images.policy." in text
            assert node.tags(IMAGE) == (APP,)


@pytest.mark.parametrize("allowed", [True, False])
async def test_verifiers_are_asked_about_a_tag(tmp_path: Path, allowed: bool) -> None:
    folder = tmp_path / "verifiers"
    folder.mkdir()
    told = tmp_path / "told"
    script = f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}; echo not mine; exit {0 if allowed else 1}\n'
    (folder / "one").write_text(script)
    (folder / "one").chmod(0o755)
    async with serving(tmp_path, verifier_dir=folder) as node:
        await node.add(IMAGE, APP)
        tagging = node.images.Tag(pb.TagRequest(image=APP, name="example.com/signed:1"))
        if allowed:
            await tagging
        else:
            code, text = await _code(tagging)
            assert code is grpc.StatusCode.PERMISSION_DENIED and "not mine" in text
        assert node.tags(IMAGE) == ((APP, "example.com/signed:1") if allowed else (APP,))
    lines = told.read_text().splitlines()
    assert lines[:4] == ["-name", "example.com/signed:1", "-digest", digest(IMAGE.manifest)]


async def test_filters_of_a_list(node: Node) -> None:
    node.manager.store.hold(OTHER.id, "container-1")
    everything = {IMAGE.id, OTHER.id}
    answer = await node.images.List(pb.ListRequest())
    assert {one.id for one in answer.images} == everything and not answer.filtered
    assert (await node.images.List(pb.ListRequest(filters=["pinned=false"]))).filtered
    assert await node.ids("reference=example.com/*") == everything
    assert await node.ids("reference=example.com/app") == {IMAGE.id}
    assert await node.ids("in-use=true") == {OTHER.id}
    assert await node.ids("in-use=false", "label=team") == {IMAGE.id}
    assert await node.ids("label=team=red") == {OTHER.id}
    assert await node.ids("label!=keep") == {IMAGE.id}
    assert await node.ids("until=1h") == set()
    assert await node.ids("dangling=true") == set()
    await node.images.Untag(pb.UntagRequest(name=APP))
    assert await node.ids("dangling=true") == {IMAGE.id}
    code, text = await _code(node.images.List(pb.ListRequest(filters=["colour=red"])))
    assert code is grpc.StatusCode.INVALID_ARGUMENT and "there is no such filter, only reference" in text


async def test_prune_removes_matching_images_but_not_held_or_pinned(node: Node) -> None:
    prune = node.images.Prune
    held = build([BASE, Layer().file("held").tar()])
    pinned = build([BASE, Layer().file("pinned").tar()])
    await node.add(held, "example.com/held:1")
    await node.add(pinned, "example.com/pinned/one:1")
    node.manager.store.hold(held.id, "container-1")
    # By default, only images without a tag.
    assert not (await prune(pb.PruneRequest())).removed
    await node.images.Untag(pb.UntagRequest(name=APP))
    await node.images.Untag(pb.UntagRequest(name="example.com/held:1"))
    dry = await prune(pb.PruneRequest(dry_run=True))
    assert [one.id for one in dry.removed] == [IMAGE.id] and not dry.freed_bytes
    assert not (await prune(pb.PruneRequest(filters=["until=1h"]))).removed
    assert not (await prune(pb.PruneRequest(filters=["dangling=true", "label=team=red"]))).removed
    assert [one.id for one in (await prune(pb.PruneRequest())).removed] == [IMAGE.id]
    code, _ = await _code(prune(pb.PruneRequest(filters=["until=soon"], all=True)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert await node.ids() == {OTHER.id, held.id, pinned.id}
    assert not (await prune(pb.PruneRequest(all=True, filters=["label=team=blue"]))).removed
    done = await prune(pb.PruneRequest(all=True))
    assert [one.id for one in done.removed] == [OTHER.id]
    assert await node.ids() == {held.id, pinned.id}


async def test_prune_removes_tagged_images_by_a_filter(node: Node) -> None:
    removed = (await node.images.Prune(pb.PruneRequest(filters=["dangling=false", "label=keep"]))).removed
    assert [one.id for one in removed] == [OTHER.id]


async def test_beginning_of_an_id_or_digest_finds_the_image(node: Node) -> None:
    by_digest = f"example.com/app@{digest(IMAGE.manifest)}"
    inspect = node.images.Inspect
    for text in (IMAGE.id[7:11], IMAGE.id[:20], by_digest, by_digest[: -64 + 12], by_digest[: -64 + 4]):
        assert (await inspect(pb.InspectRequest(image=text))).image.id == IMAGE.id
    for text in (
        "0000",
        f"example.com/app@{digest(OTHER.manifest)[:20]}",
        f"example.com/none{by_digest[15:40]}",
    ):
        assert (await _code(inspect(pb.InspectRequest(image=text))))[0] is grpc.StatusCode.NOT_FOUND


async def test_an_ambiguous_beginning_names_the_images(tmp_path: Path) -> None:
    """Two images whose ids begin with the same four digits."""
    seen: dict[str, BuiltImage] = {}
    number = 0
    while True:
        one = build([BASE], {"Env": [f"N={number}"]})
        twin = seen.setdefault(one.id[7:11], one)
        if twin is not one:
            break
        number += 1
    async with serving(tmp_path) as node:
        await node.add(one, "example.com/one:1")
        await node.add(twin, "example.com/two:1")
        for call in (
            node.images.Inspect(pb.InspectRequest(image=one.id[7:11])),
            node.images.Remove(pb.RemoveRequest(image=one.id[:11])),
            node.images.Tag(pb.TagRequest(image=one.id[7:11], name="a")),
        ):
            code, text = await _code(call)
            assert code is grpc.StatusCode.INVALID_ARGUMENT and "the prefix of 2 images" in text
            for image, name in ((one, "example.com/one:1"), (twin, "example.com/two:1")):
                assert f"{image.id} {name}" in text
        assert await node.ids() == {one.id, twin.id}


async def test_tags_and_removals_at_once(node: Node) -> None:
    """Whichever comes first: no name is left of an image that is gone."""
    names = [f"example.com/n{number}:1" for number in range(20)]
    tags = [node.images.Tag(pb.TagRequest(image=IMAGE.id, name=name)) for name in names]
    removal = node.images.Remove(pb.RemoveRequest(image=IMAGE.id))
    await asyncio.gather(*tags, removal, return_exceptions=True)
    assert await node.ids() == {OTHER.id}
    for name in names:
        assert node.manager.store.find(name) is None
