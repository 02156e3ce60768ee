"""Damage of stored images by a disk: found, kept from new containers, and repaired."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cri.container.stored_images import StoredImages
from daemonkit.faults import Broken, Fault, Refused
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from images.bounds.cancel import CancelToken
from images.image_errors import Corrupt
from images.image_settings import ImageSettings
from images.layer.layers import file_chunks
from images.manager import ImageManager
from images.pull import stored_layers
from images.pull.repair import Outcome, Repair
from images.registry import names
from images.registry.credentials import ANONYMOUS, Credentials
from images.rpc.service import add_image_services
from images.store.catalogue import StoredImage
from protectctl.__main__ import main
from tests.support.images.image_manager import running
from tests.support.images.images import BuiltImage, Layer, build, digest, packed, write_layout
from tests.support.images.registry import MANIFEST, LyingRegistry, content, status
from xenpod_proto.cri.v1 import runtime_pb2, runtime_pb2_grpc

pytestmark = pytest.mark.skipif(shutil.which("tar2sqfs") is None, reason="tar2sqfs is not installed")
NOISE = random.Random(11)
IMAGE = build(
    [
        packed(
            Layer().file("a", NOISE.randbytes(50_000)).file("etc/passwd", b"root:x:0:0::/:/a\n").tar(), how
        )
        for how in ("", "gzip", "zstd")
    ]
)
PATHS = [f"/v2/app/blobs/{digest(layer.data)}" for layer in IMAGE.layers]


@asynccontextmanager
async def managing(directory: Path, **more: object) -> AsyncIterator[ImageManager]:
    quick: dict[str, object] = {"retry_seconds": 0.01, "tries_per_host": 1, "part_bytes": 1}
    settings = ImageSettings(directory, directory / "certs.d", **(quick | more))  # type: ignore[arg-type]
    async with running(settings) as manager:
        yield manager


async def _pull(manager: ImageManager, registry: LyingRegistry) -> StoredImage:
    return await manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS)


def _asked(registry: LyingRegistry) -> list[int]:
    return sorted(PATHS.index(path) for path in registry.paths() if path in PATHS)


def harm(path: Path) -> None:
    """Change one byte in the middle, as a disk may: length and times stay."""
    times = path.stat().st_mtime_ns
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x55]))
    os.utime(path, ns=(times, times))


def _layer(manager: ImageManager, number: int) -> Path:
    return manager.store.files.blob_path(digest(IMAGE.layers[number].data))


async def _faults(manager: ImageManager, image: StoredImage) -> tuple[str, ...]:
    return (await manager.verify(image)).faults


def _with_another_top(image: BuiltImage, top: Layer) -> BuiltImage:
    return build([*image.layers, packed(top.tar())])


@pytest.mark.parametrize("number", [0, 1, 2], ids=["plain", "gzip", "zstd"])
@pytest.mark.parametrize("how", ["changed", "short", "gone"])
async def test_a_damaged_layer_is_fetched_again(tmp_path: Path, number: int, how: str) -> None:
    """At a pull of another image with the same layer, even if the compression would notice nothing."""
    other = _with_another_top(IMAGE, Layer().file("b", b"b"))
    with LyingRegistry("app", "1", IMAGE) as registry, LyingRegistry("app", "1", other) as second:
        # Each layer in a filesystem of its own: the layers are read again for the other image.
        async with managing(tmp_path, part_bytes=1 << 30) as manager:
            image = await _pull(manager, registry)
            path = _layer(manager, number)
            if how == "changed":
                harm(path)
            elif how == "short":
                os.truncate(path, path.stat().st_size - 1)
            else:
                path.unlink()
            pulled = await _pull(manager, second)
            assert _asked(second) == [number]
            assert await _faults(manager, pulled) == await _faults(manager, image) == ()


async def test_damage_in_a_layer_with_linked_files_is_noticed(tmp_path: Path) -> None:
    """An upper filesystem has a hard link to a file of the lower one, with the bytes of the lower layer."""
    base = packed(Layer().file("x", NOISE.randbytes(50_000)).tar(), "")
    one, two = build([base]), build([base, packed(Layer().link("y", "x").tar())])
    with LyingRegistry("app", "1", one) as registry, LyingRegistry("app", "1", two) as second:
        async with managing(tmp_path) as manager:
            await _pull(manager, registry)
            harm(manager.store.files.blob_path(digest(base.data)))
            image = await _pull(manager, second)
            assert second.paths().count(f"/v2/app/blobs/{digest(base.data)}") == 1
            assert await _faults(manager, image) == ()
        again = tmp_path / "again"
        async with managing(again) as manager:
            assert [path.read_bytes() for path in (await _pull(manager, second)).stack] == [
                (tmp_path / path.relative_to(again)).read_bytes()
                for path in (await _pull(manager, second)).stack
            ]


async def test_message_names_the_owner_of_damaged_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = _with_another_top(IMAGE, Layer().file("b", b"b"))
    with LyingRegistry("app", "1", IMAGE) as registry, LyingRegistry("app", "1", other) as second:
        async with managing(tmp_path, part_bytes=1 << 30) as manager:
            await _pull(manager, registry)
            harm(_layer(manager, 1))
            second.answers[PATHS[1]] = content(b"!" * len(IMAGE.layers[1].data))
            with pytest.raises(Corrupt, match=f"at http://{second.netloc}.*the bytes it gave"):
                await _pull(manager, second)
            assert f"layer {digest(IMAGE.layers[1].data)} on this host is damaged" in caplog.text
            # A manifest that gives a sound layer another length is the registry's mistake.
            lying = other.manifest.replace(
                f'"size": {len(IMAGE.layers[0].data)}'.encode(), b'"size": 99999999'
            )
            second.answers["/v2/app/manifests/1"] = content(lying, MANIFEST)
            with pytest.raises(Corrupt, match="the registry's description is wrong: .*99999999"):
                await _pull(manager, second)
            assert _layer(manager, 0).is_file()


async def test_a_damaged_filesystem_is_marked_and_rebuilt_at_the_next_pull(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            image = await _pull(manager, registry)
            sound = [path.read_bytes() for path in image.stack]
            harm(image.stack[1])
            assert not manager.store.get(image.id).damaged
            assert await _faults(manager, image) == ("filesystem image 2 of 3 has another digest",)
            assert manager.store.get(image.id).damaged
        # The mark is in the index.
        async with managing(tmp_path) as manager:
            assert manager.store.get(image.id).damaged
            assert [
                manager.store.has_filesystem(path_chain) for path_chain in manager.store.stack(image.id)
            ] == [
                True,
                False,
                True,
            ]
            registry.requests.clear()
            image = await _pull(manager, registry)
            assert _asked(registry) == []
            assert (image.damaged, await _faults(manager, image)) == (False, ())
            assert [path.read_bytes() for path in image.stack] == sound


async def test_new_container_gets_a_rebuilt_filesystem_and_the_old_container_keeps_its_own(
    tmp_path: Path,
) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            image = await _pull(manager, registry)
            images, sound = StoredImages(manager), image.stack[0].read_bytes()
            harm(image.stack[0])
            manager.store.hold(image.id, "running")
            with image.stack[0].open("rb") as opened:
                bad = opened.read()
                await _faults(manager, image)
                registry.requests.clear()
                await asyncio.gather(*(images.mend([image.id, "nothing:1", "not/A:name"]) for _ in range(3)))
                assert registry.requests == []
                assert Path(images.resolve(image.id).filesystems[0]).read_bytes() == sound
                # Open files of a running zone stay unchanged.
                assert os.fstat(opened.fileno()).st_nlink == 0
                opened.seek(0)
                assert opened.read() == bad
            assert await _faults(manager, manager.store.get(image.id)) == ()


async def test_container_of_an_unrepairable_image_is_refused_until_a_pull(tmp_path: Path) -> None:
    """A container comes without credentials, and nothing is fetched; a message asks the kubelet to pull."""
    socket = tmp_path / "cri.sock"
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            image = await _pull(manager, registry)
            images = StoredImages(manager)
            harm(image.stack[1])
            harm(_layer(manager, 1))
            await _faults(manager, image)
            registry.requests.clear()
            with pytest.raises(Refused) as caught:
                await images.mend([image.id])
            text = str(caught.value)
            assert f"{registry.netloc}/app:1" in text and digest(IMAGE.layers[1].data) in text
            assert "on this host is damaged (not the registry's bytes)" in text and "pull it again" in text
            assert registry.requests == []
            async with serve_unix(socket, lambda server: add_image_services(server, manager), name="test"):
                async with channel(socket) as link:
                    service = runtime_pb2_grpc.ImageServiceStub(link)
                    spec = runtime_pb2.ImageSpec(image=image.id)
                    asked = runtime_pb2.ImageStatusRequest(image=spec)
                    assert not (await service.ImageStatus(asked)).HasField("image")
                    listed = await service.ListImages(runtime_pb2.ListImagesRequest())
                    assert [one.id for one in listed.images] == [image.id]
                    await _pull(manager, registry)
                    assert _asked(registry) == [1]
                    assert (await service.ImageStatus(asked)).image.id == image.id
            await images.mend([image.id])
            assert await _faults(manager, manager.store.get(image.id)) == ()


async def test_a_filesystem_of_two_images_is_rebuilt_once_for_both(tmp_path: Path) -> None:
    other = _with_another_top(IMAGE, Layer().file("b", b"b"))
    with LyingRegistry("app", "1", IMAGE) as registry, LyingRegistry("app", "1", other) as second:
        async with managing(tmp_path) as manager:
            one, two = await _pull(manager, registry), await _pull(manager, second)
            harm(one.stack[0])
            await _faults(manager, one)
            assert manager.store.get(one.id).damaged and manager.store.get(two.id).damaged
            await manager.mend(manager.store.get(two.id))
            assert not manager.store.get(one.id).damaged
            assert await _faults(manager, one) == await _faults(manager, two) == ()


async def test_repair_fetches_damaged_layers_and_reports_missing_layers(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            image = await _pull(manager, registry)
            harm(image.stack[2])
            harm(_layer(manager, 0))
            _layer(manager, 1).unlink()
            chain = manager.store.stack(image.id)[2]
            found = await manager.verify(image)
            assert len(found.faults) == 3
            registry.requests.clear()
            repairs, now = await manager.repair(image, found, ANONYMOUS)
            assert repairs == [
                Repair(f"layer {digest(IMAGE.layers[0].data)}", Outcome.FETCHED),
                Repair(f"layer {digest(IMAGE.layers[1].data)}", Outcome.FETCHED),
                Repair(f"filesystem image {chain}", Outcome.REBUILT, "of the layers kept here"),
            ]
            assert _asked(registry) == [0, 1]
            assert now.faults == ()
            # All at once, and the registry has only one layer of the image.
            for path in image.stack:
                harm(path)
            for number in range(3):
                harm(_layer(manager, number))
            registry.answers[PATHS[0]] = registry.answers[PATHS[1]] = status(404)
            found = await manager.verify(image)
            repairs, now = await manager.repair(image, found, ANONYMOUS)
            assert [one.outcome for one in repairs] == [
                Outcome.FAILED,
                Outcome.FAILED,
                Outcome.FETCHED,
                Outcome.FAILED,
            ]
            assert all(registry.netloc in one.detail for one in repairs if one.outcome is Outcome.FAILED)
            assert len(now.faults) == 5
            assert not manager.store.usable(manager.store.get(image.id))


async def test_repair_of_the_documents(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            image = await _pull(manager, registry)
            row, _ = manager.store.stored(image)
            config = IMAGE.config.replace(b"linux", b"linuz")
            manager.store._db._db.execute("UPDATE images SET config = ? WHERE id = ?", (config, image.id))
            manager.store._load()
            found = await manager.verify(image)
            assert found.faults == ("the configuration has another digest",)
            repairs, now = await manager.repair(image, found, ANONYMOUS)
            assert repairs == [Repair("its configuration and manifest", Outcome.FETCHED)]
            assert now.faults == () and manager.store.stored(image)[0] == row
            assert manager.store.get(image.id).config["os"] == "linux"


async def test_an_imported_image_is_repaired_as_far_as_its_layers_go(tmp_path: Path) -> None:
    async with managing(tmp_path) as manager:
        layout = write_layout(tmp_path / "layout", IMAGE, "localhost:1/app:1")
        ((image, _),) = await manager.import_layout(layout, None)
        harm(image.stack[0])
        repairs, now = await manager.repair(image, await manager.verify(image), ANONYMOUS)
        assert [one.outcome for one in repairs] == [Outcome.REBUILT] and now.faults == ()
        harm(_layer(manager, 0))
        repairs, now = await manager.repair(image, await manager.verify(image), Credentials("a", "b"))
        assert [one.outcome for one in repairs] == [Outcome.FAILED] and "localhost:1" in repairs[0].detail
        # The filesystems are sound: the image can be used.
        assert manager.store.usable(manager.store.get(image.id))
        ((again, _),) = await manager.import_layout(layout, None)
        assert again.id == image.id


async def test_image_with_another_cut_replaces_a_damaged_image(tmp_path: Path) -> None:
    """The layers are the same, but are now cut into filesystems by another rule."""
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path, part_bytes=1 << 30) as manager:
            image = await _pull(manager, registry)
            harm(image.stack[0])
            await _faults(manager, image)
        async with managing(tmp_path) as manager:
            await manager.mend(manager.store.get(image.id))
            mended = manager.store.get(image.id)
            assert (len(mended.stack), mended.damaged, mended.repo_tags) == (3, False, image.repo_tags)
            assert await _faults(manager, mended) == ()
            # Earlier callers learn of the present state.
            assert await _faults(manager, image) == ()
            # The old filesystem is gone.
            stems = {path.stem for path in manager.store.files.named() if path.suffix == ".squashfs"}
            assert stems == {path.stem for path in mended.stack}


async def test_damaged_image_removed_during_the_repair_stays_removed(tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            image = await _pull(manager, registry)
            harm(image.stack[0])
            await _faults(manager, image)
            damaged = manager.store.get(image.id)
            manager.store.hold(image.id, "running")
            await manager.remove(image.id)
            await manager.mend(damaged)
            assert manager.store.images() == [] and not manager.store.get(image.id).damaged
            manager.store.release("running")
            with pytest.raises(Fault):
                await manager.mend(damaged)
            assert manager.store.files.named() == []


async def test_layer_with_an_io_error_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO says that the bytes are lost; any other error says nothing of the bytes."""
    other = _with_another_top(IMAGE, Layer().file("b", b"b"))
    with LyingRegistry("app", "1", IMAGE) as registry, LyingRegistry("app", "1", other) as second:
        async with managing(tmp_path, part_bytes=1 << 30) as manager:
            await _pull(manager, registry)
            bad, real = _layer(manager, 0), file_chunks
            error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))

            def failing(path: Path, token: CancelToken) -> Iterator[bytes]:
                if path == bad and bad.stat().st_ino == inode:
                    raise error
                yield from real(path, token)

            inode = bad.stat().st_ino
            monkeypatch.setattr(stored_layers, "file_chunks", failing)
            with pytest.raises(Broken, match="Too many open files"):
                await _pull(manager, second)
            assert bad.is_file()
            error = OSError(errno.EIO, os.strerror(errno.EIO))
            await _pull(manager, second)
            assert _asked(second) == [0]


async def test_verify_command_reports_and_repairs_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    socket = tmp_path / "cri.sock"

    async def protect(*arguments: str) -> tuple[int, str]:
        status = await asyncio.to_thread(main, ["image", *arguments, "--cri-socket", str(socket)])
        return status, capsys.readouterr().out

    with LyingRegistry("app", "1", IMAGE) as registry:
        async with managing(tmp_path) as manager:
            image = await _pull(manager, registry)
            harm(image.stack[0])
            harm(_layer(manager, 2))
            async with serve_unix(socket, lambda server: add_image_services(server, manager), name="test"):
                status, out = await protect("verify")
                assert status == 1 and "DAMAGED" in out and "rebuilt" not in out
                status, out = await protect("verify", "--repair")
                assert status == 0 and "REPAIRED" in out
                assert f"fetched layer {digest(IMAGE.layers[2].data)}" in out
                assert "rebuilt filesystem image" in out
                status, out = await protect("verify", "--repair")
                assert status == 0 and "sound" in out and "REPAIRED" not in out
