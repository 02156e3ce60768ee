"""Pulls from a real registry (Debian's docker-registry), through the whole image part."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from daemonkit.faults import Denied, Invalid, Missing, Unreachable
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.registry import names
from images.registry.credentials import ANONYMOUS, Credentials
from images.rpc.service import ImageService, add_image_services
from images.store.catalogue import StoredImage
from tests.support.images import registry as registries
from tests.support.images.image_manager import running
from tests.support.images.images import Layer, build, busybox, digest, index_of, packed
from tests.support.images.registry import INDEX, Registry
from tests.support.images.token_service import TokenService
from xenpod_proto.cri.v1 import runtime_pb2


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registries.running(tmp_path_factory.mktemp("registry")) as running:
        yield running


@asynccontextmanager
async def managing(directory: Path) -> AsyncIterator[ImageManager]:
    async with running(
        ImageSettings(directory / "state", directory / "certs.d", connect_seconds=30)
    ) as manager:
        yield manager


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[ImageManager]:
    async with managing(tmp_path) as made:
        yield made


async def _pull(manager: ImageManager, name: str, credentials: Credentials = ANONYMOUS) -> StoredImage:
    return await manager.pull(names.parse(name), credentials)


def _small(text: bytes, **run: object) -> bytes:
    return Layer().dir("etc").file("etc/passwd", text).tar()


def _run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
    return done.stdout


def _files(manager: ImageManager) -> set[str]:
    """All files of the store except the index."""
    root = manager.store.files.root
    return {
        str(p.relative_to(root))
        for p in root.rglob("*")
        if p.is_file() and not p.name.startswith("images.db")
    }


def _mirror(directory: Path, host: str, *urls: str, server: str = "") -> None:
    (directory / "certs.d" / host).mkdir(parents=True)
    text = f'server = "{server}"\n' if server else ""
    text += "".join(f'[host."{url}"]\ncapabilities = ["pull", "resolve"]\n' for url in urls)
    (directory / "certs.d" / host / "hosts.toml").write_text(text)


async def test_a_tag_then_its_digest(manager: ImageManager, registry: Registry) -> None:
    image = build([_small(b"root:x:0:0::/:\n")], {"User": "1002:3", "Env": ["A=b"]})
    pushed = registry.push("tags/app", "v1", image)
    name = f"{registry.netloc}/tags/app"
    pulled = await _pull(manager, f"{name}:v1")
    assert pulled.id == image.id
    assert pulled.repo_tags == (f"{name}:v1",)
    assert pulled.repo_digests == (f"{name}@{pushed}",)
    assert pulled.run == {"User": "1002:3", "Env": ["A=b"]}
    assert pulled.stack[0].read_bytes()[:4] == b"hsqs"
    assert manager.store.read_file(pulled, "/etc/passwd", 100) == b"root:x:0:0::/:\n"
    assert manager.store.read_file(pulled, "/etc/passwd", 3) is None
    assert manager.store.read_file(pulled, "/etc/group", 100) is None
    by_digest = await _pull(manager, f"{name}:ignored@{pushed}")
    assert by_digest == pulled
    for known in (image.id, image.id[7:], image.id[7:20], f"{name}:v1", f"{name}@{pushed}"):
        assert manager.store.resolve(known) == pulled


async def test_a_busybox_with_its_libraries(manager: ImageManager, registry: Registry) -> None:
    registry.push("library/busybox", "latest", build([busybox()], {"Cmd": ["sh"]}))
    pulled = await _pull(manager, f"{registry.netloc}/library/busybox")
    listed = subprocess.run(["rdsquashfs", "-d", pulled.stack[0]], capture_output=True, text=True, check=True)
    assert "file bin/busybox 0755 0 0" in listed.stdout


async def test_an_index_is_followed_to_this_platform(manager: ImageManager, registry: Registry) -> None:
    right = build([_small(b"right")])
    wrong = build([_small(b"wrong")], architecture="s390x")
    for image in (right, wrong):
        registry.push("multi/app", digest(image.manifest), image)
    attestation = wrong.descriptor | {"platform": {"os": "unknown", "architecture": "unknown"}}
    entries = [
        attestation,
        wrong.descriptor | {"platform": {"os": "linux", "architecture": "s390x"}},
        right.descriptor | {"platform": {"os": "linux", "architecture": "amd64", "variant": "v3"}},
        right.descriptor,
    ]
    pushed = registry.put_manifest("multi/app", "1", index_of(entries), INDEX)
    pulled = await _pull(manager, f"{registry.netloc}/multi/app:1")
    assert pulled.id == right.id
    assert pulled.repo_digests == (f"{registry.netloc}/multi/app@{pushed}",)
    assert pulled.manifest_digest == digest(right.manifest)
    registry.put_manifest("multi/app", "2", index_of(entries[:2]), INDEX)
    with pytest.raises(Missing, match="linux/s390x"):
        await _pull(manager, f"{registry.netloc}/multi/app:2")
    with pytest.raises(Missing, match="linux/s390x"):
        await _pull(manager, f"{registry.netloc}/multi/app@{digest(wrong.manifest)}")


async def test_image_with_a_docker_schema_2_manifest_is_pulled(
    manager: ImageManager, registry: Registry
) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    registry.push("v2s2/from", "1", build([_small(b"docker")]))
    source, target = (f"docker://{registry.netloc}/v2s2/{name}:1" for name in ("from", "to"))
    flags = ["--format", "v2s2", "--src-tls-verify=false", "--dest-tls-verify=false"]
    _run("skopeo", "copy", "--insecure-policy", *flags, source, target)
    pulled = await _pull(manager, f"{registry.netloc}/v2s2/to:1")
    assert b"vnd.docker.distribution.manifest.v2+json" in manager.store.manifest(pulled)
    assert manager.store.read_file(pulled, "/etc/passwd", 100) == b"docker"


@pytest.mark.parametrize("how", ["gzip", "zstd", ""])
async def test_layers_of_each_compression_are_pulled(
    manager: ImageManager, registry: Registry, how: str
) -> None:
    image = build([packed(_small(b"low"), how), packed(_small(f"high {how}".encode()), how)])
    registry.push(f"packed/{how or 'plain'}", "1", image)
    pulled = await _pull(manager, f"{registry.netloc}/packed/{how or 'plain'}:1")
    assert manager.store.read_file(pulled, "/etc/passwd", 100) == f"high {how}".encode()


async def test_no_layers_at_all(manager: ImageManager, registry: Registry) -> None:
    registry.push("empty/app", "1", build([]))
    pulled = await _pull(manager, f"{registry.netloc}/empty/app:1")
    assert pulled.stack[0].is_file()


async def test_pull_passes_a_dead_mirror_and_a_mirror_without_the_image(
    tmp_path: Path, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> None:
    image = build([_small(b"mirrored")])
    registry.push("library/app", "1", image)
    down = f"http://127.0.0.1:{registries.free_port()}"
    with registries.running(tmp_path_factory.mktemp("empty")) as empty:
        _mirror(tmp_path, "docker.io", down, f"http://{empty.netloc}", server=f"http://{registry.netloc}")
        async with managing(tmp_path) as manager:
            pulled = await _pull(manager, "app:1")
            assert pulled.id == image.id
            assert pulled.repo_tags == ("docker.io/library/app:1",)
            with pytest.raises(Missing, match="tried too") as caught:
                await _pull(manager, "nothing:1")
            assert down in str(caught.value)


async def test_a_mirror_with_a_corrupt_blob_is_passed_over(
    tmp_path: Path, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> None:
    image = build([_small(b"x" * 5000)])
    registry.push("library/app", "corrupt", image)
    with registries.running(tmp_path_factory.mktemp("bad")) as bad:
        bad.push("library/app", "corrupt", image)
        blob = bad.blob_file(digest(image.layers[0].data))
        blob.write_bytes(image.layers[0].data[:-1] + b"!")
        _mirror(tmp_path, "docker.io", f"http://{bad.netloc}", server=f"http://{registry.netloc}")
        async with managing(tmp_path) as manager:
            assert (await _pull(manager, "app:corrupt")).id == image.id


async def test_override_path_of_a_server_is_used_unchanged(tmp_path: Path, registry: Registry) -> None:
    image = build([_small(b"override")])
    registry.push("sub/library/app", "1", image)
    (tmp_path / "certs.d/docker.io").mkdir(parents=True)
    text = f'server = "http://{registry.netloc}/v2/sub"\noverride_path = true\n'
    (tmp_path / "certs.d/docker.io/hosts.toml").write_text(text)
    async with managing(tmp_path) as manager:
        assert (await _pull(manager, "app:1")).id == image.id


async def test_unknown_image_and_unreachable_registry_fail_the_pull(
    manager: ImageManager, registry: Registry
) -> None:
    with pytest.raises(Missing):
        await _pull(manager, f"{registry.netloc}/no/such:1")
    with pytest.raises(Unreachable, match="Connection refused"):
        await _pull(manager, f"127.0.0.1:{registries.free_port()}/app")
    assert _files(manager) == {"lock"}


async def test_an_artifact_is_refused(manager: ImageManager, registry: Registry) -> None:
    image = build([_small(b"artifact")])
    registry.push("art/base", "1", image)
    document = json.loads(image.manifest)
    document["config"]["mediaType"] = "application/vnd.example.thing.v1+json"
    registry.put_manifest("art/base", "2", json.dumps(document).encode(), registries.MANIFEST)
    with pytest.raises(Invalid, match=r"application/vnd\.example\.thing"):
        await _pull(manager, f"{registry.netloc}/art/base:2")
    assert _files(manager) == {"lock"}


async def test_shared_layers_are_fetched_once_and_go_with_the_last_image(
    manager: ImageManager, registry: Registry
) -> None:
    base = packed(_small(b"base" * 1000))
    one = build([base, packed(Layer().file("one").tar())])
    two = build([base, packed(Layer().file("two").tar())])
    same = build([base, packed(Layer().file("one").tar())], {"Labels": {"other": "config"}})
    for tag, image in (("1", one), ("2", two), ("3", same)):
        registry.push("shared/app", tag, image)
    name = f"{registry.netloc}/shared/app"
    first = await _pull(manager, f"{name}:1")
    registry.blob_file(digest(base.data)).rename(registry.root / "away")
    try:
        second = await _pull(manager, f"{name}:2")
        third = await _pull(manager, f"{name}:3")
    finally:
        (registry.root / "away").rename(registry.blob_file(digest(base.data)))
    assert first.stack[0] == third.stack[0] != second.stack[0]
    await manager.remove(first.id)
    assert third.stack[0].exists()
    await manager.remove(third.id[7:])
    assert not third.stack[0].exists()
    assert manager.store.files.blob_path(digest(base.data)).exists()
    await manager.remove(f"{name}:2")
    assert _files(manager) == {"lock"}
    await manager.remove(f"{name}:2")


async def test_moved_tag_means_the_new_image(manager: ImageManager, registry: Registry) -> None:
    old, new = build([_small(b"old")]), build([_small(b"new")])
    name = f"{registry.netloc}/moving/app:latest"
    registry.push("moving/app", "latest", old)
    await _pull(manager, name)
    registry.push("moving/app", "latest", new)
    await _pull(manager, name)
    assert manager.store.resolve(name).id == new.id
    left = manager.store.resolve(old.id)
    assert left.repo_tags == ()
    assert len(left.repo_digests) == 1


async def test_a_held_image_outlives_its_removal_and_a_restart(tmp_path: Path, registry: Registry) -> None:
    registry.push("held/app", "1", build([_small(b"held")]))
    async with managing(tmp_path) as manager:
        image = await _pull(manager, f"{registry.netloc}/held/app:1")
        manager.store.hold(image.id, "container")
        await manager.remove(image.id)
        assert manager.store.images() == []
        assert manager.store.find(image.id) is None
    async with managing(tmp_path) as manager:
        assert manager.store.get(image.id).stack[0].exists()
        manager.store.hold(image.id, "container")
        manager.store.collect()
        assert image.stack[0].exists()
        manager.store.release("container")
        assert _files(manager) == {"lock"}


async def test_many_callers_of_an_image_cost_a_single_pull(manager: ImageManager, registry: Registry) -> None:
    registry.push("many/app", "1", build([_small(b"many" * 10_000)]))
    name = f"{registry.netloc}/many/app:1"
    images = await asyncio.gather(*(_pull(manager, name) for _ in range(20)))
    assert len({image.id for image in images}) == 1


async def test_twenty_images_at_once(manager: ImageManager, registry: Registry) -> None:
    base = packed(busybox())
    for number in range(20):
        registry.push(f"twenty/app{number}", "1", build([base, packed(Layer().file(f"n{number}").tar())]))
    pulls = (_pull(manager, f"{registry.netloc}/twenty/app{number}:1") for number in range(20))
    assert len({image.id for image in await asyncio.gather(*pulls)}) == 20
    assert list(manager.store.files.ingest.iterdir()) == []


class _Context:
    """The services look at nothing of their context."""


async def test_the_services_speak_cri(manager: ImageManager, registry: Registry) -> None:
    image = build([_small(b"cri")], {"User": "www-data:33", "Labels": {"a": "b"}})
    registry.push("cri/app", "1", image)
    name = f"{registry.netloc}/cri/app:1"
    service, context = ImageService(manager), _Context()
    spec = runtime_pb2.ImageSpec(image=name)
    pull = runtime_pb2.PullImageRequest(image=spec)
    assert (await service.PullImage(pull, context)).image_ref == image.id  # type: ignore[arg-type]
    asked = runtime_pb2.ImageStatusRequest(image=spec, verbose=True)
    status = await service.ImageStatus(asked, context)  # type: ignore[arg-type]
    assert (status.image.username, status.image.HasField("uid")) == ("www-data", False)
    assert json.loads(status.info["info"])["imageSpec"]["config"]["Labels"] == {"a": "b"}
    listed = await service.ListImages(runtime_pb2.ListImagesRequest(), context)  # type: ignore[arg-type]
    assert [found.id for found in listed.images] == [image.id]
    wanted = runtime_pb2.ImageFilter(image=runtime_pb2.ImageSpec(image="other"))
    filtered = await service.ListImages(runtime_pb2.ListImagesRequest(filter=wanted), context)  # type: ignore[arg-type]
    assert not filtered.images
    info = await service.ImageFsInfo(runtime_pb2.ImageFsInfoRequest(), context)  # type: ignore[arg-type]
    measured = _run("du", "-s", "-B1", manager.store.files.root)
    assert abs(info.image_filesystems[0].used_bytes.value / int(measured.split()[0]) - 1) < 0.01
    await service.RemoveImage(runtime_pb2.RemoveImageRequest(image=spec), context)  # type: ignore[arg-type]
    gone = await service.ImageStatus(runtime_pb2.ImageStatusRequest(image=spec), context)  # type: ignore[arg-type]
    assert not gone.HasField("image")
    with pytest.raises(Invalid):
        await service.PullImage(runtime_pb2.PullImageRequest(), context)  # type: ignore[arg-type]


def test_the_services_can_be_put_on_a_server(tmp_path: Path) -> None:
    async def run() -> None:
        async with managing(tmp_path) as manager:
            add_image_services(grpc.aio.server(), manager)

    asyncio.run(run())


async def test_basic_auth_needs_the_right_password_and_stores_none(tmp_path: Path) -> None:
    image = build([_small(b"private")])
    with registries.running(tmp_path) as opened:
        opened.push("private/app", "1", image)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import crypt
    (tmp_path / "htpasswd").write_text(f"user:{crypt.crypt('secret', '$2b$05$abcdefghijklmnopqrstuu')}\n")
    auth = {"htpasswd": {"realm": "test", "path": str(tmp_path / "htpasswd")}}
    with registries.running(tmp_path, auth=auth) as closed:
        async with managing(tmp_path) as manager:
            name = f"{closed.netloc}/private/app:1"
            for credentials in (
                ANONYMOUS,
                Credentials("user", "wrong"),
                Credentials("user", "secret", server="x"),
            ):
                with pytest.raises(Denied) as caught:
                    await _pull(manager, name, credentials)
                assert "wrong" not in str(caught.value)
            assert (await _pull(manager, name, Credentials("user", "secret"))).id == image.id
            kept = b"".join(p.read_bytes() for p in manager.store.files.root.rglob("*") if p.is_file())
            assert b"secret" not in kept


async def test_tls_with_an_own_authority(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    image = build([_small(b"tls")])
    with registries.running(tmp_path) as plain:
        plain.push("tls/app", "1", image)
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    files = ["-keyout", tmp_path / "key.pem", "-out", tmp_path / "ca.pem"]
    _run(*make.split(), "-addext", "subjectAltName=IP:127.0.0.1", *files)
    tls = {"tls": {"certificate": str(tmp_path / "ca.pem"), "key": str(tmp_path / "key.pem")}}
    with registries.running(tmp_path, http=tls) as secure:
        name = f"{secure.netloc}/tls/app:1"
        for extra, works in (("", False), ("skip_verify = true", True), (f'ca = "{tmp_path}/ca.pem"', True)):
            directory = tmp_path / str(len(extra))
            (directory / "certs.d" / secure.netloc).mkdir(parents=True)
            hosts = f'server = "https://{secure.netloc}"\n{extra}\n'
            (directory / "certs.d" / secure.netloc / "hosts.toml").write_text(hosts)
            async with managing(directory) as manager:
                if works:
                    assert (await _pull(manager, name)).id == image.id
                else:
                    with pytest.raises(Unreachable, match="certificate verify failed"):
                        await _pull(manager, name)


@pytest.mark.parametrize("anonymous", [False, True], ids=["users only", "anybody"])
async def test_a_bearer_token_service(tmp_path: Path, anonymous: bool) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    image = build([_small(b"token"), _small(b"second")])
    with registries.running(tmp_path) as opened:
        opened.push("private/app", "1", image)
    with TokenService(tmp_path, "user", "secret", anonymous) as tokens:
        with registries.running(tmp_path, auth=tokens.auth) as closed:
            name = f"{closed.netloc}/private/app:1"
            async with managing(tmp_path / "user") as manager:
                with pytest.raises(Denied):
                    await _pull(manager, name, Credentials("user", "wrong"))
                assert (await _pull(manager, name, Credentials("user", "secret"))).id == image.id
                kept = b"".join(p.read_bytes() for p in manager.store.files.root.rglob("*") if p.is_file())
                assert b"secret" not in kept
            async with managing(tmp_path / "anybody") as manager:
                if anonymous:
                    assert (await _pull(manager, name)).id == image.id
                else:
                    with pytest.raises(Denied):
                        await _pull(manager, name)
        assert {scope for _, scope in tokens.asked} == {"repository:private/app:pull"}
