"""Images for two runtimes: pods of either kind get the images of both; the kubelet counts each once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cri.delegate.config import Unnamed
from cri.delegate.owners import Owner
from daemonkit.faults import Refused, Unreachable
from images.registry import names
from images.registry.credentials import ANONYMOUS
from tests.support.images import registry as registries
from tests.support.images.images import BuiltImage, Layer, build, digest, write_layout
from tests.support.images.mixed_node import MixedNode, mixed_node
from tests.support.images.registry import Registry
from tests.support.images.token_service import TokenService
from xenpod_proto.cri.v1 import runtime_pb2 as cri

ZONE, HOST = Owner.OURS, Owner.DELEGATE


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registries.running(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MixedNode]:
    async with mixed_node(tmp_path) as made:
        yield made


def _image(seed: int, user: str = "") -> BuiltImage:
    data = random.Random(seed).randbytes(1 << 16)
    return build([Layer().file("data", data).tar()], {"User": user} if user else {})


def _pushed(node: MixedNode, registry: Registry, image: BuiltImage, repository: str) -> str:
    """Push an image under a tag that both sides can pull: the name."""
    pinned = registry.push(repository, "1", image)
    name = f"{registry.netloc}/{repository}"
    node.containerd.offers |= {f"{name}:1": image, f"{name}@{pinned}": image}
    return f"{name}:1"


@pytest.mark.parametrize("ref", ["tag", "digest", "id"])
@pytest.mark.parametrize("pod", [ZONE, HOST])
@pytest.mark.parametrize("has", [ZONE, HOST])
async def test_image_of_either_side_serves_both_kinds_of_pod(
    node: MixedNode, registry: Registry, has: Owner, pod: Owner, ref: str
) -> None:
    image = _image(1)
    name = _pushed(node, registry, image, "mixed/either")
    pulled = await node.pull(name, zone=has is ZONE)
    assert pulled == image.id
    assert node.here(image.id) is (has is ZONE)
    assert (image.id in node.containerd.images) is (has is HOST)
    pinned = f"{name.rpartition(':')[0]}@{digest(image.manifest)}"
    asked = {"tag": name, "digest": pinned, "id": image.id}[ref]
    present = await node.status(asked)
    assert present.id == image.id
    pulls = len(node.containerd.asked("PullImage"))
    await node.create(pod, present.id, name)
    assert node.here(image.id) is (ZONE in (has, pod))
    assert (image.id in node.containerd.images) is (HOST in (has, pod))
    # The side without the image pulls by digest, the other side pulls nothing.
    asked_again = [request.image.image for request in node.containerd.asked("PullImage")[pulls:]]
    assert asked_again == ([pinned] if (has, pod) == (ZONE, HOST) else [])
    both = await node.status(asked)
    assert both.id == image.id and name in both.repo_tags
    assert [one.id for one in await node.listed()] == [image.id]


@pytest.mark.parametrize("pod", [ZONE, HOST])
async def test_always_pulls_on_the_side_of_the_pod(node: MixedNode, registry: Registry, pod: Owner) -> None:
    image = _image(2)
    name = _pushed(node, registry, image, "mixed/always")
    await node.pull(name, zone=pod is ZONE)
    assert (node.here(image.id), len(node.containerd.asked("PullImage"))) == (pod is ZONE, int(pod is HOST))
    await node.create(pod, image.id, name)
    assert (node.here(image.id), image.id in node.containerd.images) == (pod is ZONE, pod is HOST)


async def test_image_of_neither_side_is_absent(node: MixedNode) -> None:
    assert not (await node.status("registry.example/nothing:1")).id
    assert not (await node.status("Not A Name")).id
    await node.create(ZONE, "sha256:" + "0" * 64)
    await node.create(HOST, "sha256:" + "0" * 64)
    assert node.containerd.asked("PullImage") == []


@pytest.mark.parametrize(("handler", "default", "side"), [
    ("", Unnamed.DELEGATE, HOST), ("", Unnamed.XENPOD, ZONE),
    ("xenpod-gpu", Unnamed.DELEGATE, ZONE), ("runc", Unnamed.XENPOD, HOST),
])  # fmt: skip
async def test_a_pull_without_a_pod(
    tmp_path: Path, registry: Registry, handler: str, default: Unnamed, side: Owner
) -> None:
    async with mixed_node(tmp_path, default=default) as node:
        image = _image(3)
        name = _pushed(node, registry, image, "mixed/crictl")
        spec = cri.ImageSpec(image=name, runtime_handler=handler)
        await node.images.PullImage(cri.PullImageRequest(image=spec))
        assert (node.here(image.id), image.id in node.containerd.images) == (side is ZONE, side is HOST)
        passed = [request.image.runtime_handler for request in node.containerd.asked("PullImage")]
        assert passed == ([handler] if side is HOST else [])


async def test_pull_reaches_the_delegate_unchanged(node: MixedNode, registry: Registry) -> None:
    name = _pushed(node, registry, _image(4), "mixed/verbatim")
    request = cri.PullImageRequest(image=cri.ImageSpec(image=name, annotations={"a": "b"}))
    request.sandbox_config.metadata.uid = "host-pod"
    # Fields unknown to this version: number 999, a string.
    raw = request.SerializeToString() + b"\xba\x3e\x05later"
    seen: list[bytes] = []

    async def note(method: str, context: Any) -> None:
        if method == "PullImage":
            seen.append(node.containerd.asked("PullImage")[-1].SerializeToString())

    node.containerd.before = note
    await node.images.PullImage(cri.PullImageRequest.FromString(raw))
    assert seen == [raw]


async def test_a_handler_of_ours_is_not_the_delegates(node: MixedNode, registry: Registry) -> None:
    """A pod of our handler may be the delegate's, because of the host's network."""
    name = _pushed(node, registry, _image(5), "mixed/hostnet")
    request = cri.PullImageRequest(image=cri.ImageSpec(image=name, runtime_handler="xenpod"))
    request.sandbox_config.metadata.uid = "host-pod"
    await node.images.PullImage(request)
    assert [one.image.runtime_handler for one in node.containerd.asked("PullImage")] == [""]


async def test_private_images_come_with_the_last_pulls_credentials(tmp_path: Path) -> None:
    with TokenService(tmp_path, "kube", "secret") as service:
        with registries.running(tmp_path, auth=service.auth) as private:
            async with mixed_node(tmp_path) as node:
                image = _image(6)
                _push_private(private, service, "mixed/private", image)
                name = f"{private.netloc}/mixed/private:1"
                node.containerd.offers[name] = image
                auth = cri.AuthConfig(username="kube", password="secret")
                await node.pull(name, zone=False, auth=auth)
                await node.create(ZONE, image.id, name)
                assert node.here(image.id)


async def test_missing_credentials_are_reported_with_a_remedy(tmp_path: Path) -> None:
    with TokenService(tmp_path, "kube", "secret") as service:
        with registries.running(tmp_path, auth=service.auth) as private:
            async with mixed_node(tmp_path) as node:
                image = _image(7)
                name = f"{private.netloc}/mixed/private:1"
                node.containerd.add(image, name)
                with pytest.raises(Refused, match="only unix:.* has it.*imagePullPolicy: Always") as caught:
                    await node.create(ZONE, image.id, name)
                assert "answers 401" in str(caught.value)


def _push_private(registry: Registry, service: TokenService, repository: str, image: BuiltImage) -> None:
    """Write an image into the registry's folder, since its tokens allow only pulls."""
    root = registry.root / "docker/registry/v2"
    manifest = digest(image.manifest)
    for name, data in {**image.blobs, manifest: image.manifest}.items():
        value = name.partition(":")[2]
        blob = root / "blobs/sha256" / value[:2] / value / "data"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        where = "_manifests/revisions" if name == manifest else "_layers"
        _link(root / "repositories" / repository / where / "sha256" / value / "link", name)
    tag = root / "repositories" / repository / "_manifests/tags/1"
    _link(tag / "current/link", manifest)
    _link(tag / "index/sha256" / manifest.partition(":")[2] / "link", manifest)


def _link(path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)


async def test_the_delegate_pulls_by_digest_with_the_pod_and_the_credentials(
    node: MixedNode, registry: Registry
) -> None:
    image = _image(8)
    name = _pushed(node, registry, image, "mixed/given-on")
    auth = cri.AuthConfig(username="kube", password="secret")
    await node.pull(name, zone=True, auth=auth)
    await node.create(HOST, image.id, name)
    (asked,) = node.containerd.asked("PullImage")
    assert asked.image.image == f"{name.rpartition(':')[0]}@{digest(image.manifest)}"
    assert (asked.auth, asked.sandbox_config.metadata.uid) == (auth, "host-pod")
    # Another container needs nothing.
    calls = len(node.containerd.calls)
    await node.create(HOST, image.id, name)
    assert [method for method, _ in node.containerd.calls[calls:]] == ["ImageStatus"]


async def test_image_imported_for_zones_is_refused_for_the_delegate(node: MixedNode, tmp_path: Path) -> None:
    image = _image(10)
    await _imported(node, tmp_path, image)
    words = "only xenpod has it.*no name with a digest.*ctr -n k8s.io images import"
    with pytest.raises(Refused, match=words):
        await node.create(HOST, image.id)
    assert node.containerd.asked("PullImage") == []


async def test_import_under_a_name_without_registry_is_refused(node: MixedNode, tmp_path: Path) -> None:
    image = _image(11)
    await _imported(node, tmp_path, image, "registry.example/imported:1")
    with pytest.raises(Refused, match="NOT_FOUND.*ctr -n k8s.io images import"):
        await node.create(HOST, image.id)


async def test_image_imported_for_the_delegate_is_refused_for_zones(node: MixedNode) -> None:
    image = _image(39)
    node.containerd.images[image.id] = cri.Image(id=image.id, repo_tags=["registry.example/imported:1"])
    with pytest.raises(Refused, match="only unix:.* has it.*no name with a digest.*protect image import"):
        await node.create(ZONE, image.id)
    assert not node.here(image.id)


async def test_another_image_than_the_delegate_showed_is_refused(node: MixedNode, registry: Registry) -> None:
    image, other = _image(40), _image(41)
    name = _pushed(node, registry, other, "mixed/another")
    pinned = f"{name.rpartition(':')[0]}@{digest(other.manifest)}"
    node.containerd.images[image.id] = cri.Image(id=image.id, repo_digests=[pinned])
    with pytest.raises(Refused, match=f"for this platform it is {other.id}"):
        await node.create(ZONE, image.id)


async def _imported(node: MixedNode, folder: Path, image: BuiltImage, name: str = "") -> None:
    (folder / "layout").mkdir()
    given = names.parse(name) if name else None
    await node.manager.import_layout(write_layout(folder / "layout", image), given)


async def _only_theirs(node: MixedNode, registry: Registry, image: BuiltImage, repository: str) -> str:
    """Pull an image on the delegate's side: the image's name."""
    name = _pushed(node, registry, image, repository)
    await node.pull(name, zone=False)
    return name


async def test_images_of_volumes_come_too(node: MixedNode, registry: Registry) -> None:
    root, volume = _image(12), _image(13)
    name = await _only_theirs(node, registry, root, "mixed/root")
    await _only_theirs(node, registry, volume, "mixed/volume")
    await node.create(ZONE, root.id, name, volume.id)
    assert node.here(root.id) and node.here(volume.id)


async def test_moved_tag_means_the_last_pull(node: MixedNode, registry: Registry) -> None:
    older, newer = _image(14, "1000"), _image(15, "0")
    name = _pushed(node, registry, older, "mixed/moved")
    await node.pull(name, zone=True)
    _pushed(node, registry, newer, "mixed/moved")
    await node.pull(name, zone=False)
    assert (await node.status(name)).id == newer.id
    assert (await node.status(name, "xenpod")).id == older.id
    assert (await node.status(name, "runc")).id == newer.id
    # The kubelet's check of the user is about the image of the next start.
    assert (await node.status(name)).uid.value == 0
    tags = {image.id: list(image.repo_tags) for image in await node.listed()}
    assert tags == {older.id: [], newer.id: [name]}
    await node.create(ZONE, newer.id, name)
    assert node.here(newer.id) and node.manager.store.resolve(name).id == older.id
    await node.pull(name, zone=True)
    assert (await node.status(name)).id == newer.id
    assert node.manager.store.resolve(name).id == newer.id


async def test_tag_pulled_by_an_operator_means_the_operators_image(
    node: MixedNode, registry: Registry
) -> None:
    older, newer = _image(34), _image(35)
    name = _pushed(node, registry, older, "mixed/operator")
    await node.pull(name, zone=False)
    _pushed(node, registry, newer, "mixed/operator")
    await node.manager.pull(names.parse(name), ANONYMOUS)
    assert (await node.status(name)).id == newer.id


async def test_tag_given_by_an_operator_means_the_operators_image(
    node: MixedNode, registry: Registry, tmp_path: Path
) -> None:
    theirs, imported, tagged = _image(36), _image(37), _image(38)
    name = _pushed(node, registry, theirs, "mixed/given")
    await node.pull(name, zone=False)
    assert (await node.status(name)).id == theirs.id
    await node.manager.import_layout(write_layout(tmp_path / "imported", imported), names.parse(name))
    assert (await node.status(name)).id == imported.id
    await node.pull(name, zone=False)
    assert (await node.status(name)).id == theirs.id
    ((stored, _),) = await node.manager.import_layout(write_layout(tmp_path / "tagged", tagged), None)
    await node.manager.tag(stored, names.parse(name))
    assert (await node.status(name)).id == tagged.id


async def test_lists_have_each_image_once(node: MixedNode, registry: Registry) -> None:
    both, only_ours, only_theirs = _image(16), _image(17), _image(18)
    name = _pushed(node, registry, both, "mixed/both")
    other = _pushed(node, registry, only_ours, "mixed/ours")
    await node.pull(name, zone=True)
    await node.pull(other, zone=True)
    node.containerd.add(both, "mirror.example/both:1", size=1000)
    node.containerd.images[both.id].pinned = True
    node.containerd.add(only_theirs, "mirror.example/theirs:1")
    listed = {image.id: image for image in await node.listed()}
    assert sorted(listed) == sorted([both.id, only_ours.id, only_theirs.id])
    one = listed[both.id]
    ours = node.manager.store.resolve(both.id)
    assert sorted(one.repo_tags) == sorted([name, "mirror.example/both:1"])
    assert (one.size, one.pinned) == (1000 + ours.size, True)
    streamed = [image async for answer in node.images.StreamImages(cri.StreamImagesRequest())
                for image in answer.images]  # fmt: skip
    assert {image.id: image for image in streamed} == listed
    assert [image.id for image in await node.listed("mirror.example/both:1")] == [both.id]
    assert await node.listed("mirror.example/nothing:1") == []


async def test_removal_takes_the_image_from_both(node: MixedNode, registry: Registry) -> None:
    image, other = _image(19), _image(20)
    for one in (image, other):
        name = await _only_theirs(node, registry, one, f"mixed/{one.id[7:15]}")
        await node.create(ZONE, one.id)
    remove = node.images.RemoveImage
    await remove(cri.RemoveImageRequest(image=cri.ImageSpec(image=image.id)))
    assert not node.here(image.id) and image.id not in node.containerd.images
    await remove(cri.RemoveImageRequest(image=cri.ImageSpec(image=name)))
    assert not node.here(other.id) and other.id not in node.containerd.images
    await remove(cri.RemoveImageRequest(image=cri.ImageSpec(image="registry.example/nothing:1")))


async def test_an_error_of_its_removal_is_said_after_ours(node: MixedNode, registry: Registry) -> None:
    image = _image(21)
    await _only_theirs(node, registry, image, "mixed/stuck")
    await node.create(ZONE, image.id)

    async def refuse(method: str, context: Any) -> None:
        if method == "RemoveImage":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it is busy")

    node.containerd.before = refuse
    with pytest.raises(grpc.aio.AioRpcError, match="it is busy"):
        await node.images.RemoveImage(cri.RemoveImageRequest(image=cri.ImageSpec(image=image.id)))
    assert not node.here(image.id)


async def test_unreadable_answer_to_a_removal_is_reported_after_our_removal(
    node: MixedNode, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = _image(36)
    await _only_theirs(node, registry, image, "mixed/garbled")
    await node.create(ZONE, image.id)
    monkeypatch.setattr(node.containerd, "garbled", "RemoveImage")
    with pytest.raises(grpc.aio.AioRpcError, match="its answer is not CRI's"):
        await node.images.RemoveImage(cri.RemoveImageRequest(image=cri.ImageSpec(image=image.id)))
    assert not node.here(image.id)


async def test_while_the_delegate_is_away(node: MixedNode, registry: Registry) -> None:
    mine, both = _image(22), _image(23)
    name = _pushed(node, registry, mine, "mixed/away")
    await node.pull(name, zone=True)
    theirs = await _only_theirs(node, registry, both, "mixed/away-both")
    await node.create(ZONE, both.id)
    before = await node.listed()
    node.delegate.lost("it is being upgraded")
    # Zones go on: present images are found, missing images are pulled.
    assert (await node.status(name)).id == mine.id
    assert not (await node.status("registry.example/new:1")).id
    again = _image(24)
    await node.pull(_pushed(node, registry, again, "mixed/away-too"), zone=True)
    await node.create(ZONE, mine.id)
    # The delegate's images are as last listed, and possible images of the delegate are not removed by half.
    assert {image.id for image in await node.listed()} == {image.id for image in before} | {again.id}
    assert [image.id for image in await node.listed(theirs)] == [both.id]
    with pytest.raises(grpc.aio.AioRpcError, match="it is being upgraded"):
        await node.images.RemoveImage(cri.RemoveImageRequest(image=cri.ImageSpec(image=both.id)))
    assert node.here(both.id)
    await node.images.RemoveImage(cri.RemoveImageRequest(image=cri.ImageSpec(image=mine.id)))
    assert not node.here(mine.id)
    with pytest.raises(Unreachable, match="it is being upgraded"):
        await node.create(HOST, both.id)


async def test_too_old_list_is_ignored(tmp_path: Path) -> None:
    async with mixed_node(tmp_path, keep=0.000001) as node:
        await node.listed()
        node.delegate.lost("it is gone")
        with pytest.raises(grpc.aio.AioRpcError, match="it is gone") as caught:
            await node.listed()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await node.images.ImageFsInfo(cri.ImageFsInfoRequest())).image_filesystems


async def test_silent_delegate_has_no_images(node: MixedNode) -> None:
    node.delegate.lost("it has not answered yet")
    node.delegate.ever_answered = False
    assert await node.listed() == []


async def test_pull_invalidates_the_earlier_list(node: MixedNode, registry: Registry) -> None:
    """Or the kubelet would forget whose secret a private image was pulled with."""
    await node.listed()
    await node.pull(_pushed(node, registry, _image(25), "mixed/forgotten"), zone=False)
    node.delegate.lost("it is gone")
    with pytest.raises(grpc.aio.AioRpcError, match="it is gone"):
        await node.listed()


async def test_space_of_both_on_a_common_filesystem_is_counted_once(node: MixedNode, tmp_path: Path) -> None:
    usage = cri.FilesystemUsage(timestamp=1, fs_id=cri.FilesystemIdentifier(mountpoint=str(tmp_path)))
    usage.used_bytes.value, usage.inodes_used.value = 1 << 40, 1 << 20
    node.containerd.filesystems = cri.ImageFsInfoResponse(
        image_filesystems=[usage], container_filesystems=[usage]
    )
    answer = await node.images.ImageFsInfo(cri.ImageFsInfoRequest())
    for entries in (answer.image_filesystems, answer.container_filesystems):
        (one,) = entries
        assert one.fs_id.mountpoint == str(node.manager.store.files.root)
        assert one.used_bytes.value > 1 << 40 and one.inodes_used.value > 1 << 20


async def test_a_loop_is_refused(node: MixedNode) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="passed on by a xenpod-cri already"):
        await node.images.ListImages(cri.ListImagesRequest(), metadata=(("xenpod-delegated", "1"),))


async def test_lying_delegate_is_not_believed(node: MixedNode) -> None:
    image = _image(26)
    node.containerd.add(image, "registry.example/lies:1")
    twice, nameless = cri.Image(id=image.id, size=1 << 63), cri.Image(repo_tags=["registry.example/x:1"])
    node.containerd.images |= {"twice": twice, "nameless": nameless}
    listed = await node.listed()
    assert [(one.id, one.size) for one in listed] == [(image.id, 100)]
    node.containerd.images |= {str(number): cri.Image(id=f"{number}") for number in range(20_000)}
    node.delegate.ever_answered = True
    listed = await node.listed()
    # As in the last believable list.
    assert [one.id for one in listed] == [image.id]


async def test_hanging_delegate_delays_no_zone(tmp_path: Path, registry: Registry) -> None:
    silent = asyncio.Event()

    async def hang(method: str, context: Any) -> None:
        if silent.is_set():
            await asyncio.Event().wait()

    async with mixed_node(tmp_path, timeout=0.5) as node:
        image = _image(27)
        name = _pushed(node, registry, image, "mixed/hang")
        await node.pull(name, zone=True)
        node.containerd.before = hang
        silent.set()
        assert (await node.status(name)).id == image.id
        assert "no answer within" in node.delegate.trouble
        calls = len(node.containerd.calls)
        assert (await node.status(name)).id == image.id
        assert not (await node.status("registry.example/absent:1")).id
        assert len(node.containerd.calls) == calls, "nobody waits for it a second time"


async def test_pull_of_a_lost_caller_is_there_at_the_callers_return(
    node: MixedNode, registry: Registry
) -> None:
    """The kubelet gives CreateContainer two minutes, and large images take longer."""
    image = _image(28)
    await node.pull(_pushed(node, registry, image, "mixed/large"), zone=True)
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def wait(method: str, context: Any) -> None:
        if method == "PullImage":
            asked.set()
            await go_on.wait()

    node.containerd.before = wait
    first = asyncio.create_task(node.create(HOST, image.id))
    async with asyncio.timeout(60):
        await asked.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(node.create(HOST, image.id))
        go_on.set()
        await second
    assert image.id in node.containerd.images
    assert len(node.containerd.asked("PullImage")) == 1, "two callers share the pull"


async def test_ids_without_their_algorithm_stay_the_delegates(tmp_path: Path, registry: Registry) -> None:
    """In CRI-O's form: by the id the kubelet tells whose container uses an image."""
    async with mixed_node(tmp_path) as node:
        image = _image(31)
        name = _pushed(node, registry, image, "mixed/bare")
        pinned = f"{name.rpartition(':')[0]}@{digest(image.manifest)}"
        bare = image.id.removeprefix("sha256:")
        node.containerd.images[bare] = cri.Image(id=bare, repo_tags=[name], repo_digests=[pinned], size=7)
        await node.create(ZONE, bare, name)
        assert node.manager.store.resolve(image.id).id == image.id
        assert sorted(one.id for one in await node.listed()) == sorted([bare, image.id])
        await node.images.RemoveImage(cri.RemoveImageRequest(image=cri.ImageSpec(image=bare)))
        assert node.here(image.id) and node.containerd.images == {}
