"""Images for both kinds of pod with a real containerd, asked for as the kubelet does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_daemons import needs_node
from tests.support.delegate.containerd import needs_containerd
from tests.support.delegate.mixed import HOST, KINDS, PATIENCE, ZONE, Mixed, programs
from tests.support.images import registry as registries
from tests.support.images.images import BuiltImage, Layer, build, digest, index_of, packed, write_layout
from tests.support.images.registry import Registry
from tests.support.waiting import found
from tools.localnode import layers
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.images.v1 import images_pb2, images_pb2_grpc

pytestmark = [pytest.mark.root, needs_node, needs_containerd, pytest.mark.asyncio(loop_scope="module")]

PASSWORD = "oyster-catcher"
ALWAYS, IF_NOT_PRESENT, NEVER = "Always", "IfNotPresent", "Never"
_numbers = count()
_busybox = packed(layers.busybox())


@dataclass(frozen=True)
class Published:
    """A new image in a registry."""

    name: str
    image: BuiltImage
    word: str
    auth: cri.AuthConfig | None = None

    @property
    def pinned(self) -> str:
        """The image's name with a digest."""
        return f"{self.name.rpartition(':')[0]}@{digest(self.image.manifest)}"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registries.running(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Registry, Registry]]:
    """Two registries with the same content: for pushes without a password, and for pulls with a password."""
    folder = tmp_path_factory.mktemp("private")
    (folder / "in").mkdir()
    passwords = folder / "htpasswd"
    # Of PASSWORD, with bcrypt.
    passwords.write_text("kube:$2b$04$abcdefghijklmnopqrstuuB6Jcm5oj8YZ0rD9W49L62.49Kt8Wz6u\n")
    auth = {"htpasswd": {"realm": "private", "path": str(passwords)}}
    with registries.running(folder / "in") as inside:
        outer = folder / "out"
        outer.mkdir()
        (outer / "registry").symlink_to(inside.root)
        with registries.running(outer, auth=auth) as outside:
            yield inside, outside


def made() -> tuple[BuiltImage, str]:
    """Build a unique image: the image, and the word in the image."""
    word = f"word-{next(_numbers)}"
    run = {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"]}
    return build([_busybox, Layer().file("word", f"{word}\n".encode()).tar()], run), word


def published(
    registry: Registry, auth: cri.AuthConfig | None = None, by: Registry | None = None
) -> Published:
    """Push a new image; ``by`` is the registry of the pull, if different."""
    image, word = made()
    repository = f"both/{word}"
    registry.push(repository, "1", image)
    return Published(f"{(by or registry).netloc}/{repository}:1", image, word, auth)


async def wanted(
    mixed: Mixed, pod: Pod, name: str, policy: str, auth: cri.AuthConfig | None = None
) -> str | None:
    """Ask like a kubelet before a container's creation: the image's reference; None: not present."""
    spec = cri.ImageSpec(image=name)
    if policy != ALWAYS:
        answer = await mixed.client.image.ImageStatus(cri.ImageStatusRequest(image=spec), timeout=PATIENCE)
        if answer.image.id or policy == NEVER:
            return str(answer.image.id) or None
    request = cri.PullImageRequest(image=spec, auth=auth, sandbox_config=pod.config)
    return str((await mixed.client.image.PullImage(request, timeout=PATIENCE)).image_ref)


async def says(mixed: Mixed, pod: Pod, reference: str, name: str = "") -> str:
    """Run an image: the word in the image."""
    spec = cri.ImageSpec(image=reference, user_specified_image=name)
    container = await mixed.started(pod, image=spec, name=f"c{next(_numbers)}")
    return await mixed.output(container, "cat /word")


async def given_to(mixed: Mixed, kind: str, one: Published) -> Pod:
    """Pull the image for a pod of this kind: the pod."""
    pod = await mixed.pod(f"first-{one.word}", kind)
    assert await wanted(mixed, pod, one.name, ALWAYS, one.auth) == one.image.id
    return pod


async def runs(mixed: Mixed, kind: str, one: Published) -> None:
    """A second pod, of this kind, runs the image."""
    pod = await mixed.pod(f"second-{one.word}", kind)
    reference = await wanted(mixed, pod, one.name, IF_NOT_PRESENT)
    assert reference is not None
    assert await says(mixed, pod, reference, one.name) == one.word


def ctr(mixed: Mixed, *arguments: str) -> str:
    """Run a command of containerd's own client: the output."""
    folder = programs()
    program = str(folder / "ctr") if folder else "ctr"
    command = [program, "-a", str(mixed.delegate.socket), "-n", "k8s.io", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("policy", [ALWAYS, IF_NOT_PRESENT, NEVER])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has", [*KINDS, ""])
async def test_pull_policies_act_as_documented(
    mixed: Mixed, registry: Registry, has: str, kind: str, policy: str
) -> None:
    one = published(registry)
    if has:
        await given_to(mixed, has, one)
    pod = await mixed.pod(f"second-{one.word}", kind)
    reference = await wanted(mixed, pod, one.name, policy)
    if policy == NEVER and not has:
        assert reference is None
        return
    assert reference == one.image.id
    assert await says(mixed, pod, reference, one.name) == one.word


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["digest", "id"])
async def test_by_digest_and_by_id(mixed: Mixed, registry: Registry, how: str, kind: str) -> None:
    one = published(registry)
    other = ZONE if kind == HOST else HOST
    await given_to(mixed, other, one)
    asked = one.pinned if how == "digest" else one.image.id
    pod = await mixed.pod(f"second-{one.word}", kind)
    reference = await wanted(mixed, pod, asked, IF_NOT_PRESENT)
    assert reference == one.image.id
    assert await says(mixed, pod, reference, asked) == one.word


@pytest.mark.parametrize("kind", KINDS)
async def test_image_of_a_lost_registry_is_refused_on_the_other_side(
    mixed: Mixed, tmp_path: Path, kind: str
) -> None:
    with registries.running(tmp_path) as soon_gone:
        one = published(soon_gone)
        await given_to(mixed, ZONE if kind == HOST else HOST, one)
    pod = await mixed.pod(f"second-{one.word}", kind)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await says(mixed, pod, one.image.id, one.name)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "imagePullPolicy: Always" in (caught.value.details() or "")


async def test_archive_serves_the_runtimes_of_its_import(mixed: Mixed, tmp_path: Path) -> None:
    (tmp_path / "layout").mkdir()
    image, word = made()
    name = f"registry.test/imported/{word}:1"
    layout = write_layout(tmp_path / "layout", image)
    named = image.descriptor | {"annotations": {"io.containerd.image.name": name}}
    (layout / "index.json").write_bytes(index_of([named]))
    archive = tmp_path / "image.tar"
    subprocess.run(["tar", "-C", layout, "-cf", archive, "."], check=True)
    ctr(mixed, "images", "import", str(archive))
    assert await _seen(mixed, name) == image.id
    host = await mixed.pod(f"{word}-host", HOST)
    assert await says(mixed, host, image.id, name) == word
    zone = await mixed.pod(f"{word}-zone", ZONE)
    with pytest.raises(grpc.aio.AioRpcError, match="protect image import") as caught:
        await says(mixed, zone, image.id, name)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    async with mixed.node.daemon.channel() as link:
        request = images_pb2.ImportRequest(path=str(archive), name=name)
        await images_pb2_grpc.ImagesStub(link).Import(request)
    assert await says(mixed, zone, image.id, name) == word


async def _seen(mixed: Mixed, name: str) -> str:
    """The reference of an imported image, once containerd's CRI has learnt of it from an event."""
    return await found(lambda: wanted(mixed, Pod("", cri.PodSandboxConfig()), name, NEVER))


async def test_an_import_of_ours_is_refused_for_containerd(mixed: Mixed, tmp_path: Path) -> None:
    image, word = made()
    layout = write_layout(tmp_path, image)
    async with mixed.node.daemon.channel() as link:
        await images_pb2_grpc.ImagesStub(link).Import(images_pb2.ImportRequest(path=str(layout)))
    pod = await mixed.pod(word, HOST)
    with pytest.raises(grpc.aio.AioRpcError, match="ctr -n k8s.io images import") as caught:
        await says(mixed, pod, image.id)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_private_image_comes_with_the_credentials_of_its_last_pull(
    mixed: Mixed, private: tuple[Registry, Registry]
) -> None:
    inside, outside = private
    auth = cri.AuthConfig(username="kube", password=PASSWORD)
    one = published(inside, auth, outside)
    with pytest.raises(grpc.aio.AioRpcError):
        await wanted(mixed, await mixed.pod(f"stranger-{one.word}", ZONE), one.name, IF_NOT_PRESENT)
    await given_to(mixed, HOST, one)
    await runs(mixed, ZONE, one)


async def test_no_password_is_logged(mixed: Mixed, private: tuple[Registry, Registry]) -> None:
    inside, outside = private
    one = published(inside, cri.AuthConfig(username="kube", password=PASSWORD), outside)
    await given_to(mixed, HOST, one)
    await given_to(mixed, ZONE, one)
    said = mixed.node.daemon.log.read_text()
    assert one.word in said and PASSWORD not in said


async def test_the_list_has_each_image_once_and_removal_takes_both(mixed: Mixed, registry: Registry) -> None:
    one = published(registry)
    await given_to(mixed, HOST, one)
    pod = await mixed.pod(f"second-{one.word}", ZONE)
    await mixed.created(pod, image=cri.ImageSpec(image=one.image.id, user_specified_image=one.name))
    images = (await mixed.client.image.ListImages(cri.ListImagesRequest(), timeout=PATIENCE)).images
    ids = [image.id for image in images]
    assert len(ids) == len(set(ids))
    (listed,) = [image for image in images if image.id == one.image.id]
    (theirs,) = [
        image
        for image in (await mixed.direct.image.ListImages(cri.ListImagesRequest(), timeout=PATIENCE)).images
        if image.id == one.image.id
    ]
    assert list(listed.repo_tags) == [one.name] and list(listed.repo_digests) == [one.pinned]
    assert listed.size > theirs.size
    await mixed.client.remove_pod(pod.id)
    await mixed.client.remove_image(one.image.id)
    for client in (mixed.client, mixed.direct):
        spec = cri.ImageSpec(image=one.image.id)
        answer = await client.image.ImageStatus(cri.ImageStatusRequest(image=spec), timeout=PATIENCE)
        assert not answer.image.id


async def test_the_filesystem_of_both_is_counted_once(mixed: Mixed) -> None:
    request = cri.ImageFsInfoRequest()
    joined = await mixed.client.image.ImageFsInfo(request, timeout=PATIENCE)
    theirs = await mixed.direct.image.ImageFsInfo(request, timeout=PATIENCE)
    (one,) = joined.image_filesystems
    assert one.used_bytes.value > theirs.image_filesystems[0].used_bytes.value
