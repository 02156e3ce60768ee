"""What an operator asks of images: xenpod.images.v1 behind a real server, and ``protect image``."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import grpc
import pytest
from rich.console import Console

from cri.container.stored_images import StoredImages
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.rpc.cri_messages import verbose_info
from images.rpc.service import add_image_services
from images.store.catalogue import StoredImage
from images.store.db import ImageDb
from images.verify import Verification
from protectctl.__main__ import main
from protectctl.image.bars import Bars
from tests.support.images.image_manager import running
from tests.support.images.images import BuiltImage, Layer, build, digest, packed, write_layout
from tests.support.images.registry import Answer, LyingRegistry
from tests.support.observe.messages import next_message
from xenpod_proto.cri.v1 import runtime_pb2, runtime_pb2_grpc
from xenpod_proto.images.v1 import images_pb2 as pb
from xenpod_proto.images.v1 import images_pb2_grpc

BASE = packed(
    Layer().dir("etc").file("etc/passwd", b"root:x:0:0::/:\n").file("big", b"b" * 900_000).tar(), ""
)
TOP = packed(Layer().file("top", b"t" * 600_000).tar(), "")
IMAGE = build([BASE, TOP], {"Cmd": ["sh"], "User": "7"})
OTHER = build([BASE, packed(Layer().file("other").tar())])


def _settings(tmp_path: Path) -> ImageSettings:
    pinned = ("example.com/pinned/*", "example.com/exact:1")
    return ImageSettings(tmp_path / "state", tmp_path / "certs.d", connect_seconds=30, pinned=pinned)


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[ImageManager]:
    async with running(_settings(tmp_path)) as made:
        yield made


@pytest.fixture
async def socket(manager: ImageManager, tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "cri.sock"
    add = lambda server: add_image_services(server, manager)  # noqa: E731
    async with serve_unix(path, add, name="test", grace=0.1):
        yield path


@pytest.fixture
async def images(socket: Path) -> AsyncIterator[images_pb2_grpc.ImagesAsyncStub]:
    async with channel(socket) as link:
        yield images_pb2_grpc.ImagesStub(link)


async def _import(
    images: images_pb2_grpc.ImagesAsyncStub, tmp_path: Path, image: BuiltImage, name: str
) -> str:
    layout = write_layout(tmp_path / name.replace("/", "_"), image, name)
    answer = await images.Import(pb.ImportRequest(path=str(layout)))
    return answer.images[0].id


def _in_steps(data: bytes, steps: list[threading.Event]) -> Answer:
    """Gives a part of the data for each event, when it is set."""
    size = -(-len(data) // len(steps))

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        for number, step in enumerate(steps):
            assert step.wait(300)
            handler.wfile.write(data[number * size : (number + 1) * size])

    return answer


async def test_pull_reports_its_progress(
    images: images_pb2_grpc.ImagesAsyncStub, manager: ImageManager
) -> None:
    first, second = threading.Event(), threading.Event()
    watching = images.WatchPulls(pb.WatchPullsRequest())
    assert not (await next_message(watching)).pulls
    with LyingRegistry("app", "1", IMAGE) as registry:
        name = f"{registry.netloc}/app:1"
        registry.answers[f"/v2/app/blobs/{digest(BASE.data)}"] = _in_steps(BASE.data, [first, second])
        half = -(-len(BASE.data) // 2)
        pulling = images.Pull(pb.PullRequest(name=name))

        async def until(*wanted: tuple[int, pb.PartState.ValueType]) -> pb.PullProgress:
            while True:
                event = await next_message(pulling)
                if [(layer.bytes, layer.state) for layer in event.progress.layers] == [*wanted]:
                    return event.progress

        top = (len(TOP.data), pb.PART_STATE_DONE)
        progress = await until((0, pb.PART_STATE_ACTIVE), top)
        assert progress.stage == pb.PULL_STAGE_FETCHING
        assert [layer.total_bytes for layer in progress.layers] == [len(BASE.data), len(TOP.data)]
        assert [layer.name for layer in progress.layers] == [digest(BASE.data), digest(TOP.data)]
        first.set()
        await until((half, pb.PART_STATE_ACTIVE), top)
        (shown,) = StoredImages(manager).pulls()
        assert (shown["image"], shown["stage"]) == (name, "fetching")
        assert json.dumps(shown)
        # A second caller of the same pull.
        other = asyncio.create_task(_last(images.Pull(pb.PullRequest(name=name))))
        watched = await _read_until(
            watching,
            lambda event: [layer.bytes for pull in event.pulls for layer in pull.layers][:1] == [half],
        )
        assert [pull.name for pull in watched.pulls] == [name]
        second.set()
        assert (await _last(pulling)).image.id == IMAGE.id
        assert (await other).image.id == IMAGE.id
        assert registry.paths().count(f"/v2/app/blobs/{digest(BASE.data)}") == 1
    await _read_until(watching, lambda event: not event.pulls)
    watching.cancel()


async def _last(stream: grpc.aio.UnaryStreamCall[pb.PullRequest, pb.PullEvent]) -> pb.PullEvent:
    while True:
        event = await next_message(stream)
        if event.HasField("image"):
            return event


async def _read_until(
    stream: grpc.aio.UnaryStreamCall[pb.WatchPullsRequest, pb.WatchPullsEvent],
    wanted: Callable[[pb.WatchPullsEvent], bool],
) -> pb.WatchPullsEvent:
    while True:
        event = await next_message(stream)
        if wanted(event):
            return event


async def test_pull_without_callers_is_cancelled(
    images: images_pb2_grpc.ImagesAsyncStub, manager: ImageManager
) -> None:
    never = threading.Event()
    with LyingRegistry("app", "1", IMAGE) as registry:
        registry.answers[f"/v2/app/blobs/{digest(BASE.data)}"] = _in_steps(BASE.data, [never])
        pulling = images.Pull(pb.PullRequest(name=f"{registry.netloc}/app:1"))
        while not (await next_message(pulling)).progress.layers:
            pass
        pulling.cancel()
        async with asyncio.timeout(60):
            while manager.pulls._tasks:
                await manager.pulls.drain()
        never.set()
    assert manager.store.images() == []


async def test_stalled_pull_is_cancelled(tmp_path: Path) -> None:
    never = threading.Event()
    settings = ImageSettings(tmp_path / "still", tmp_path / "certs.d", pull_stall_seconds=0.5)
    manager = ImageManager(settings)
    await manager.start()
    try:
        with LyingRegistry("app", "1", IMAGE) as registry:
            registry.answers[f"/v2/app/blobs/{digest(BASE.data)}"] = _in_steps(BASE.data, [never])
            from daemonkit.faults import TooLate
            from images.registry import names
            from images.registry.credentials import ANONYMOUS

            with pytest.raises(TooLate, match="nothing of it moved"):
                await asyncio.wait_for(manager.pull(names.parse(f"{registry.netloc}/app:1"), ANONYMOUS), 60)
            never.set()
    finally:
        await manager.stop()


async def test_list_inspect_and_remove(
    images: images_pb2_grpc.ImagesAsyncStub, manager: ImageManager, tmp_path: Path
) -> None:
    await _import(images, tmp_path, IMAGE, "example.com/app:1")
    await _import(images, tmp_path, OTHER, "example.com/pinned/other:1")
    manager.store.hold(IMAGE.id, "container-1")
    listed = {one.id: one for one in (await images.List(pb.ListRequest())).images}
    assert set(listed) == {IMAGE.id, OTHER.id}
    assert (listed[IMAGE.id].pinned, list(listed[IMAGE.id].containers)) == (False, ["container-1"])
    assert (listed[OTHER.id].pinned, list(listed[OTHER.id].containers)) == (True, [])
    inspected = await images.Inspect(pb.InspectRequest(image="example.com/app:1"))
    assert (inspected.config, inspected.manifest) == (IMAGE.config, IMAGE.manifest)
    assert [layer.digest for layer in inspected.layers] == [digest(BASE.data), digest(TOP.data)]
    stored = Path(inspected.filesystems[0].path).read_bytes()
    assert (inspected.filesystems[0].size_bytes, inspected.filesystems[0].digest) == (
        len(stored),
        digest(stored),
    )
    removed = await images.Remove(pb.RemoveRequest(image=IMAGE.id[7:20]))
    assert (removed.image.id, removed.freed) == (IMAGE.id, False)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await images.Remove(pb.RemoveRequest(image="example.com/app:1"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    manager.store.release("container-1")
    assert not Path(inspected.filesystems[0].path).exists()
    assert (await images.Remove(pb.RemoveRequest(image="example.com/pinned/other:1"))).freed
    assert not [p for p in manager.store.files.named() if p.is_file()]


async def test_losses_of_an_image_are_logged_stored_and_shown(
    images: images_pb2_grpc.ImagesAsyncStub,
    manager: ImageManager,
    socket: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the log, in the index, in what people and programs are shown."""
    layer = Layer().file("old", mtime=-5).file("exact", mtime=7.25).file("older", mtime=-6)
    name = "example.com/lossy:1"
    await _import(images, tmp_path, build([packed(layer.tar())]), name)
    (line,) = [record.getMessage() for record in caplog.records if "cannot hold" in record.getMessage()]
    assert "fractions of a second (files: 1), times before 1970 or after 2106 (files: 2)" in line
    inspected = await images.Inspect(pb.InspectRequest(image=name))
    assert {loss.kind: loss.files for loss in inspected.losses} == {
        "time_fractions": 1,
        "times_out_of_range": 2,
    }
    assert await _protect(socket, "inspect", name) == 0
    assert "times before 1970 or after 2106 (files: 2)" in capsys.readouterr().out
    status = verbose_info(manager.store.resolve(name))
    assert json.loads(status["info"])["lost"] == {"time_fractions": 1, "times_out_of_range": 2}
    again = ImageDb(manager.store.files.index)
    assert [row.lost for row in again.filesystems()] == [{"time_fractions": 1, "times_out_of_range": 2}]
    again.close()
    await _import(images, tmp_path, IMAGE, "example.com/app:1")
    assert not (await images.Inspect(pb.InspectRequest(image="example.com/app:1"))).losses


async def test_gc_keeps_held_and_pinned_images(
    images: images_pb2_grpc.ImagesAsyncStub, manager: ImageManager, tmp_path: Path
) -> None:
    held = build([BASE, packed(Layer().file("held").tar())])
    exact = build([BASE, packed(Layer().file("exact").tar())])
    await _import(images, tmp_path, held, "example.com/held:1")
    await _import(images, tmp_path, IMAGE, "example.com/unused:1")
    await _import(images, tmp_path, OTHER, "example.com/pinned/deep/other:9")
    await _import(images, tmp_path, exact, "example.com/exact:1")
    manager.store.hold(held.id, "container-1")
    dry = await images.Collect(pb.CollectRequest(dry_run=True))
    assert [one.id for one in dry.removed] == [IMAGE.id]
    assert len(manager.store.images()) == 4
    before = (await manager.usage()).bytes
    done = await images.Collect(pb.CollectRequest())
    assert [one.id for one in done.removed] == [IMAGE.id]
    assert {one.id for one in manager.store.images()} == {held.id, OTHER.id, exact.id}
    assert done.freed_bytes == before - (await manager.usage()).bytes
    # The index may have grown by a few pages.
    assert done.freed_bytes > len(TOP.data) - (128 << 10)
    # The layer shared with other images stays.
    assert manager.store.files.blob_path(digest(BASE.data)).exists()
    assert not manager.store.files.blob_path(digest(TOP.data)).exists()
    manager.store.release("container-1")
    assert [one.id for one in (await images.Collect(pb.CollectRequest())).removed] == [held.id]
    assert not (await images.Collect(pb.CollectRequest())).removed


async def test_cri_says_pinned(images: images_pb2_grpc.ImagesAsyncStub, socket: Path, tmp_path: Path) -> None:
    await _import(images, tmp_path, IMAGE, "example.com/exact:1")
    await _import(images, tmp_path, OTHER, "example.com/exact:2")
    async with channel(socket) as link:
        service = runtime_pb2_grpc.ImageServiceStub(link)
        listed = (await service.ListImages(runtime_pb2.ListImagesRequest())).images
        assert {one.id: one.pinned for one in listed} == {IMAGE.id: True, OTHER.id: False}
        asked = runtime_pb2.ImageStatusRequest(image=runtime_pb2.ImageSpec(image=IMAGE.id))
        assert (await service.ImageStatus(asked)).image.pinned


async def test_verify_finds_damage_by_a_disk(
    images: images_pb2_grpc.ImagesAsyncStub, manager: ImageManager, tmp_path: Path
) -> None:
    await _import(images, tmp_path, IMAGE, "example.com/app:1")
    await _import(images, tmp_path, OTHER, "example.com/other:1")

    async def verdicts(*names: str) -> dict[str, list[str]]:
        stream = images.Verify(pb.VerifyRequest(images=names))
        return {event.image.id: list(event.faults) async for event in stream}

    assert await verdicts() == {IMAGE.id: [], OTHER.id: []}
    stored = manager.store.resolve(IMAGE.id).stack[0]
    stored.chmod(0o600)
    with stored.open("r+b") as file:
        file.seek(200)
        byte = file.read(1)
        file.seek(200)
        file.write(bytes([byte[0] ^ 1]))
    assert await verdicts("example.com/app:1") == {IMAGE.id: ["the filesystem image has another digest"]}
    with manager.store.files.blob_path(digest(BASE.data)).open("ab") as layer:
        layer.write(b"!")
    found = await verdicts("example.com/other:1")
    size = len(BASE.data)
    assert found[OTHER.id] == [f"layer {digest(BASE.data)} has {size + 1} bytes instead of {size}"]
    manager.store.files.blob_path(digest(TOP.data)).unlink()
    assert any("No such file" in fault for fault in (await verdicts())[IMAGE.id])
    with pytest.raises(grpc.aio.AioRpcError):
        await verdicts("example.com/nothing:1")


async def test_verify_skips_images_removed_during_the_check(
    images: images_pb2_grpc.ImagesAsyncStub,
    manager: ImageManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await _import(images, tmp_path, IMAGE, "example.com/app:1")
    await _import(images, tmp_path, OTHER, "example.com/other:1")
    verify, first = manager.verify, min(IMAGE.id, OTHER.id)

    async def removed(image: StoredImage) -> Verification:
        if image.id == first:
            await manager.remove(image.id)
        return await verify(image)

    monkeypatch.setattr(manager, "verify", removed)
    events = [event.image.id async for event in images.Verify(pb.VerifyRequest())]
    assert events == [max(IMAGE.id, OTHER.id)]


async def _protect(socket: Path, *arguments: str) -> int:
    return await asyncio.to_thread(main, ["image", *arguments, "--cri-socket", str(socket)])


async def test_image_commands_work_from_import_to_removal(
    socket: Path, manager: ImageManager, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = write_layout(tmp_path / "layout", OTHER, "example.com/pinned/other:1")
    assert await _protect(socket, "import", str(layout)) == 0
    with LyingRegistry("app", "1", IMAGE) as registry:
        name = f"{registry.netloc}/app:1"
        assert await _protect(socket, "pull", name) == 0
        out = capsys.readouterr().out
        assert name in out and IMAGE.id[7:19] in out
        assert await _protect(socket, "pull", f"{registry.netloc}/app:2") == 1
        assert "no such image [NOT_FOUND]" in capsys.readouterr().err
    assert await _protect(socket, "list", "--output", "json") == 0
    listed = json.loads(capsys.readouterr().out)["images"]
    assert {one["id"]: one["pinned"] for one in listed} == {IMAGE.id: False, OTHER.id: True}
    assert await _protect(socket, "list") == 0
    assert "pinned" in capsys.readouterr().out
    assert await _protect(socket, "inspect", name, "--output", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["config"] == json.loads(IMAGE.config)
    assert await _protect(socket, "inspect", name) == 0
    shown = capsys.readouterr().out
    assert '["sh"]' in shown and "squashfs" in shown
    assert await _protect(socket, "verify") == 0
    assert capsys.readouterr().out.count("sound") == 2
    manager.store.files.blob_path(digest(TOP.data)).unlink()
    assert await _protect(socket, "verify", name) == 1
    assert "DAMAGED" in capsys.readouterr().out
    assert await _protect(socket, "gc", "--dry-run", "--output", "json") == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["removed"]] == [IMAGE.id]
    assert await _protect(socket, "gc") == 0
    assert "freed " in capsys.readouterr().err
    assert await _protect(socket, "remove", OTHER.id) == 0
    assert f"removed {OTHER.id}\n" in capsys.readouterr().out
    assert await _protect(socket, "remove", OTHER.id) == 1
    assert manager.store.images() == []


async def test_a_password_comes_on_stdin(
    socket: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.images.registry import status

    shown: list[str] = []
    with LyingRegistry("app", "1", IMAGE) as registry:
        for path, inner in list(registry.answers.items()):

            def guard(handler: BaseHTTPRequestHandler, inner: Answer = inner) -> None:
                shown.append(handler.headers.get("Authorization", ""))
                challenge = status(401, WWW_Authenticate='Basic realm="x"')
                (inner if shown[-1] else challenge)(handler)

            registry.answers[path] = guard
        monkeypatch.setattr("sys.stdin", io.StringIO("se:cret\nmore\n"))
        assert await _protect(socket, "pull", f"{registry.netloc}/app:1", "--username", "me") == 0
    import base64

    assert f"Basic {base64.b64encode(b'me:se:cret').decode()}" in shown
    assert "cret" not in capsys.readouterr().out


def test_pull_draws_a_bar_for_each_part() -> None:
    """On a terminal: a bar for each layer, and one for the filesystem."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    layers = [
        pb.PartProgress(name="sha256:" + "a" * 64, state=pb.PART_STATE_ACTIVE, bytes=5, total_bytes=10),
        pb.PartProgress(name="sha256:" + "b" * 64, state=pb.PART_STATE_WAITING, total_bytes=20),
    ]
    filesystem = pb.PartProgress(name="sha256:c", state=pb.PART_STATE_ACTIVE, bytes=1, total_bytes=30)
    with Bars(console) as bars:
        bars.show(pb.PullProgress(name="[red]x", stage=pb.PULL_STAGE_RESOLVING))
        bars.show(pb.PullProgress(name="x", stage=pb.PULL_STAGE_FETCHING, layers=layers))
        bars.show(pb.PullProgress(stage=pb.PULL_STAGE_BUILDING, layers=layers, filesystem=filesystem))
        bars.done()
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(text in drawn for text in ("aaaaaaaaaaaa", "bbbbbbbbbbbb", "filesystem", "done"))


def test_skipped_host_is_named_once() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    pull = pb.PullProgress(name="x", passed_over={"https://mirror.example": "refused \x1b[31m[red]"})
    with Bars(console) as bars:
        bars.show(pull)
        bars.show(pull)
        pull.passed_over["https://second.example"] = "503"
        bars.show(pull)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == [
        r"https://mirror.example is asked last: refused \x1b[31m[red]",
        "https://second.example is asked last: 503",
    ]


def test_no_bars_without_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with Bars(console) as bars:
        bars.show(pb.PullProgress(name="x", stage=pb.PULL_STAGE_RESOLVING))
        bars.done()
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
