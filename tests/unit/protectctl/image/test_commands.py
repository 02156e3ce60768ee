"""Requests of ``protect image`` to xenpod-cri, and its output."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from daemonkit.rpc.server import serve_unix
from protectctl.__main__ import main
from xenpod_proto.images.v1 import images_pb2 as pb
from xenpod_proto.images.v1 import images_pb2_grpc

MIB = 1 << 20
PULLED = 1_700_000_000
ID = "sha256:" + "0123456789abcdef" * 4
WEB = pb.Image(
    id=ID,
    tags=["docker.io/library/web:1", "docker.io/library/web:latest"],
    digests=["docker.io/library/web@sha256:feed"],
    size_bytes=7 * MIB,
    manifest_digest="sha256:" + "fedcba9876543210" * 4,
    pulled_at_ns=PULLED * 10**9,
    pinned=True,
    containers=["c1", "c2"],
    zones=["0123456789abcdefzone"],
)
BARE = pb.Image(id="sha256:" + "9" * 64, digests=["bare@sha256:beef"], size_bytes=3 * MIB // 2)


class Images(images_pb2_grpc.ImagesServicer):
    """Answers from a table, and remembers its requests."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.answers: dict[str, Any] = {}

    def _answer(self, name: str, request: object) -> Any:
        self.asked.append(request)
        return self.answers[name]

    async def _stream(self, name: str, request: object) -> AsyncIterator[Any]:
        for event in self._answer(name, request):
            yield event

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._answer("List", request)

    async def Inspect(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._answer("Inspect", request)

    async def Remove(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._answer("Remove", request)

    async def Collect(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._answer("Collect", request)

    async def Prune(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._answer("Prune", request)

    async def Tag(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._answer("Tag", request)

    async def Untag(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._answer("Untag", request)

    async def Export(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        for event in self._answer("Export", request):
            if isinstance(event, str):
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, event)
            yield event

    async def Import(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._answer("Import", request)

    async def ListKernels(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._answer("ListKernels", request)

    def Pull(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._stream("Pull", request)

    def Verify(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._stream("Verify", request)

    def WatchPulls(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._stream("WatchPulls", request)


class Command:
    """``protect image`` against the table; lines of output with single spaces."""

    def __init__(self, socket: Path, images: Images, capture: pytest.CaptureFixture[str]) -> None:
        self.images, self.error = images, ""
        self._socket, self._capture = socket, capture

    async def raw(self, *arguments: str, status: int = 0) -> str:
        everything = ["image", *arguments, "--cri-socket", str(self._socket)]
        assert await asyncio.to_thread(main, everything) == status
        out, self.error = self._capture.readouterr()
        return out

    async def lines(self, *arguments: str, status: int = 0) -> list[str]:
        return [" ".join(line.split()) for line in (await self.raw(*arguments, status=status)).splitlines()]


@pytest.fixture
async def image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Command]:
    images, socket = Images(), tmp_path / "cri.sock"

    def add(server: grpc.aio.Server) -> None:
        images_pb2_grpc.add_ImagesServicer_to_server(images, server)

    async with serve_unix(socket, add, name="test", grace=0.1):
        yield Command(socket, images, capsys)


async def test_images_are_listed(image: Command) -> None:
    image.images.answers["List"] = pb.ListResponse(images=[WEB, BARE])
    head, web, latest, by_digest, bare = await image.lines("list")
    assert head == "ID SIZE USERS PINNED AGE NAMES"
    assert web.startswith("0123456789ab 7 MiB 3 yes ") and web.endswith("d docker.io/library/web:1")
    assert (latest, by_digest) == ("docker.io/library/web:latest", "docker.io/library/web@sha256:feed")
    assert bare.startswith("999999999999 2 MiB 2") and bare.endswith("d bare@sha256:beef")
    answer = json.loads(await image.raw("list", "--output", "json"))
    assert [one["id"] for one in answer["images"]] == [WEB.id, BARE.id]
    assert answer["images"][1]["pinned"] is False


async def test_a_list_is_filtered(image: Command) -> None:
    filters = ("--filter", "dangling=true", "-f", "until=24h")
    image.images.answers["List"] = pb.ListResponse(images=[BARE], filtered=True)
    assert len(await image.lines("list", *filters)) == 2
    assert json.loads(await image.raw("list", *filters, "--output", "json"))["filtered"] is True
    assert image.images.asked == [pb.ListRequest(filters=["dangling=true", "until=24h"])] * 2
    image.images.answers["List"] = pb.ListResponse(images=[WEB, BARE])
    assert await image.raw("list", *filters, status=1) == ""
    assert "is older than this command, and knows no filters" in image.error


async def test_a_quiet_list_has_only_ids(image: Command) -> None:
    near = pb.Image(id="sha256:" + "9" * 13 + "a" * 51)
    image.images.answers["List"] = pb.ListResponse(images=[WEB, BARE, near])
    assert await image.lines("list", "-q") == ["0123456789abcd", "9" * 14, "9" * 13 + "a"]
    image.images.answers["List"] = pb.ListResponse()
    assert await image.raw("list", "--quiet") == ""


async def test_list_shortens_ids_and_digests_alone(image: Command) -> None:
    name = "registry.example/" + "a" * 200 + "/web"
    long = pb.Image(id=ID, tags=[f"{name}:1"], digests=[f"{name}@sha256:{'f' * 64}"])
    image.images.answers["List"] = pb.ListResponse(images=[long])
    _, first, second = await image.lines("list")
    assert first.endswith(f" {name}:1") and second == f"{name}@sha256:{'f' * 12}"
    answer = json.loads(await image.raw("list", "--output", "json"))
    assert answer["images"][0]["digests"] == [f"{name}@sha256:{'f' * 64}"]


async def test_names_are_tagged_and_untagged(image: Command) -> None:
    image.images.answers["Tag"] = pb.TagResponse(image=WEB, name="docker.io/library/new:1")
    new = "docker.io/library/new:1 is now a name of 0123456789ab"
    assert await image.lines("tag", "web", "new:1") == [new]
    image.images.answers["Tag"].taken_from = BARE.id
    assert await image.lines("tag", "web", "new:1") == [f"{new}, no longer of 999999999999"]
    answer = json.loads(await image.raw("tag", "web", "new:1", "--output", "json"))
    assert answer["taken_from"] == BARE.id
    assert image.images.asked == [pb.TagRequest(image="web", name="new:1")] * 3
    image.images.answers["Untag"] = pb.UntagResponse(image=WEB, name="a:1")
    assert await image.lines("untag", "a:1", "b:1") == ["a:1 is no longer a name of 0123456789ab"] * 2
    assert image.images.asked[3:] == [pb.UntagRequest(name="a:1"), pb.UntagRequest(name="b:1")]
    image.images.answers["Untag"] = pb.UntagResponse(image=BARE, name="a:1")
    last = "a:1 is no longer a name of 999999999999, which has no tag now"
    assert await image.lines("untag", "a:1") == [last]


async def test_prune_removes_unused_images(image: Command) -> None:
    image.images.answers["Prune"] = pb.CollectResponse(removed=[BARE], freed_bytes=12 * MIB)
    assert len(await image.lines("prune")) == 2
    assert image.error == "freed 12 MiB\n"
    assert len(await image.lines("prune", "--all", "--filter", "until=24h", "--dry-run")) == 2
    assert image.error == ""
    assert json.loads(await image.raw("prune", "--output", "json"))["freed_bytes"] == str(12 * MIB)
    all_of_it = pb.PruneRequest(filters=["until=24h"], all=True, dry_run=True)
    assert image.images.asked == [pb.PruneRequest(), all_of_it, pb.PruneRequest()]


LAYOUT = {
    "oci-layout": b"{}",
    "index.json": b"",
    "blobs/sha256/0a": b"x" * 512,
    "blobs/sha256/0b": b"y" * 700,
}


def _sent(**files: bytes) -> list[Any]:
    events: list[Any] = []
    for name, data in {**LAYOUT, **files}.items():
        events.append(pb.ExportEvent(file=pb.ExportFile(path=name, size_bytes=len(data))))
        events += [pb.ExportEvent(data=data[at : at + 300]) for at in range(0, len(data), 300)]
    return events


async def test_an_archive_is_exported(image: Command, tmp_path: Path) -> None:
    image.images.answers["Export"] = _sent()
    out = tmp_path / "out.tar"
    out.write_text("before")
    assert await image.raw("export", "web", "bare", str(out)) == ""
    assert image.images.asked == [pb.ExportRequest(images=["web", "bare"])]
    with tarfile.open(out) as archive:
        found = {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
    assert found == LAYOUT
    again = tmp_path / "again.tar"
    await image.raw("export", "web", str(again))
    assert again.read_bytes() == out.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "again.tar",
        "cri.sock",
        "cri.sock.lock",
        "out.tar",
    ]


async def test_a_directory_is_exported(image: Command, tmp_path: Path) -> None:
    image.images.answers["Export"] = _sent()
    out = tmp_path / "layout"
    await image.raw("export", "web", str(out), "--directory")
    files = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert files == LAYOUT
    await image.raw("export", "web", str(out), "--directory", status=1)
    assert "is not an empty directory" in image.error
    await image.raw("export", "web", str(out), status=1)
    assert "it exists, and is not a file" in image.error
    await image.raw("export", "web", str(tmp_path / "none" / "out.tar"), status=1)
    assert "No such file or directory" in image.error


@pytest.mark.parametrize("more", [(), ("--directory",)])
@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([*_sent(), "the layer is damaged"], "the layer is damaged [FAILED_PRECONDITION]"),
        (_sent()[:-1], "no proper image layout"),
        ([*_sent()[:-1], *_sent()], "no proper image layout"),
        (_sent(**{"../x": b"x"}), "no proper image layout"),
        (_sent(**{"blobs/sha256/../../x": b"x"}), "no proper image layout"),
        (_sent(**{"/etc/x": b"x"}), "no proper image layout"),
    ],
)
async def test_a_broken_export_leaves_nothing(
    image: Command, tmp_path: Path, events: list[Any], error: str, more: tuple[str, ...]
) -> None:
    image.images.answers["Export"] = events
    before = sorted(tmp_path.iterdir())
    await image.raw("export", "web", str(tmp_path / "out"), *more, status=1)
    assert error in image.error
    assert sorted(tmp_path.iterdir()) == before


async def test_kernels_are_listed(image: Command) -> None:
    kernels = [
        pb.KernelImage(image=WEB, version="6.12", flavor="lts", image_bytes=MIB, addons_bytes=2 * MIB,
                       initramfs_bytes=4 * MIB, taken_out=True),
        pb.KernelImage(image=BARE, version="6.1", image_bytes=MIB),
        pb.KernelImage(image=BARE, flavor="odd", taken_out=True, fault="no kernel in it"),
    ]  # fmt: skip
    image.images.answers["ListKernels"] = pb.ListKernelsResponse(kernels=kernels)
    assert await image.lines("list-kernels") == [
        "IMAGE DIGEST KERNEL SIZE ZONES STATE",
        "docker.io/library/web:1 fedcba987654 6.12 lts 7 MiB 0123456789ab taken out",
        "bare@sha256:beef 6.1 1 MiB",
        "bare@sha256:beef odd 0 MiB no kernel in it",
    ]
    answer = json.loads(await image.raw("list-kernels", "--output", "json"))
    assert [one["taken_out"] for one in answer["kernels"]] == [True, False, True]


async def test_an_import_shows_its_images(image: Command) -> None:
    found = pb.ImportedImage(name="me:1", id=ID, size_bytes=5 * MIB)
    image.images.answers["Import"] = pb.ImportResponse(images=[found])
    assert await image.lines("import", "/a/layout") == ["ID SIZE NAMES", "0123456789ab 5 MiB me:1"]
    answer = json.loads(await image.raw("import", "/a/layout", "--name", "me:1", "--output", "json"))
    assert answer["images"][0]["size_bytes"] == str(5 * MIB)
    assert image.images.asked == [
        pb.ImportRequest(path="/a/layout"),
        pb.ImportRequest(path="/a/layout", name="me:1"),
    ]


async def test_removed_names_are_shown(image: Command) -> None:
    image.images.answers["Remove"] = pb.RemoveResponse(image=WEB)
    names = [*WEB.tags, *WEB.digests]
    removed = [
        *(f"removed {name}" for name in names),
        f"removed {ID}, kept on the disk for 3 containers and zones",
    ]
    assert await image.lines("remove", "web", "other") == removed * 2
    assert image.images.asked == [pb.RemoveRequest(image="web"), pb.RemoveRequest(image="other")]
    image.images.answers["Remove"] = pb.RemoveResponse(image=BARE, freed=True)
    assert await image.lines("remove", "bare") == ["removed bare@sha256:beef", f"removed {BARE.id}"]
    assert json.loads(await image.raw("remove", "bare", "--output", "json"))["freed"] is True


async def test_an_inspected_image_is_shown(image: Command) -> None:
    config = {
        "os": "linux",
        "architecture": "amd64",
        "config": {"Entrypoint": ["/init", "-v"], "Cmd": [], "User": "me\x1b[2J"},
    }
    image.images.answers["Inspect"] = pb.InspectResponse(
        image=WEB,
        config=json.dumps(config).encode(),
        manifest=b'{"schemaVersion": 2}',
        layers=[pb.StoredLayer(digest="sha256:aa", size_bytes=MIB)],
        filesystems=[pb.StoredFilesystem(path="/x.squashfs", type="squashfs", size_bytes=2 * MIB)],
    )
    assert await image.lines("inspect", "web") == [
        f"id {ID}",
        "name docker.io/library/web:1",
        "name docker.io/library/web:latest",
        "name docker.io/library/web@sha256:feed",
        f"manifest {WEB.manifest_digest}",
        "platform linux/amd64",
        f"pulled {datetime.fromtimestamp(PULLED):%Y-%m-%d %H:%M:%S}",
        "size 7 MiB",
        "pinned yes",
        "container c1",
        "container c2",
        "kernel of zone 0123456789abcdefzone",
        "layer sha256:aa 1 MiB",
        "filesystem /x.squashfs (squashfs, 2 MiB)",
        'entrypoint ["/init", "-v"]',
        r'user "me\u001b[2J"',
    ]
    assert image.images.asked == [pb.InspectRequest(image="web")]
    answer = json.loads(await image.raw("inspect", "web", "--output", "json"))
    assert answer["config"] == config and answer["manifest"] == {"schemaVersion": 2}
    assert answer["image"]["pinned"] is True


@pytest.mark.parametrize("run", ["null", "[]", '"sh"'])
async def test_an_odd_configuration_is_shown(image: Command, run: str) -> None:
    config = f'{{"config": {run}}}'.encode()
    image.images.answers["Inspect"] = pb.InspectResponse(image=BARE, config=config, manifest=b"{}")
    assert await image.lines("inspect", "bare") == [
        f"id {BARE.id}",
        "name bare@sha256:beef",
        "platform /",
        "size 2 MiB",
    ]


async def test_verify_shows_sound_and_damaged_images(image: Command) -> None:
    sound = pb.VerifyEvent(image=WEB, read_bytes=9 * MIB)
    damaged = pb.VerifyEvent(image=BARE, faults=["a layer is short", "no manifest"], read_bytes=MIB)
    image.images.answers["Verify"] = [sound]
    assert await image.lines("verify") == ["sound docker.io/library/web:1 0123456789ab 9 MiB"]
    for events in ([damaged, sound], [sound, damaged]):
        image.images.answers["Verify"] = events
        assert sorted(await image.lines("verify", "a", "b", status=1)) == [
            "DAMAGED bare@sha256:beef 999999999999 1 MiB",
            "a layer is short",
            "no manifest",
            "sound docker.io/library/web:1 0123456789ab 9 MiB",
        ]
    assert image.images.asked[:2] == [pb.VerifyRequest(), pb.VerifyRequest(images=["a", "b"])]
    out = await image.raw("verify", "--output", "json", status=1)
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["faults"] == [] and second["faults"] == ["a layer is short", "no manifest"]


async def test_verify_repairs_damaged_images(image: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    repairs = [
        pb.Repair(object="layer sha256:aa", outcome=pb.REPAIR_OUTCOME_FETCHED),
        pb.Repair(
            object="filesystem image sha256:bb",
            outcome=pb.REPAIR_OUTCOME_REBUILT,
            detail="of the layers kept here",
        ),
    ]
    failed = pb.Repair(object="layer sha256:cc", outcome=pb.REPAIR_OUTCOME_FAILED, detail="no such image")
    mended = pb.VerifyEvent(image=WEB, faults=["one", "two"], repairs=repairs, read_bytes=MIB)
    left = pb.VerifyEvent(image=BARE, faults=["three"], repairs=[failed], remaining=["three"], read_bytes=MIB)
    sound = pb.VerifyEvent(image=WEB, read_bytes=9 * MIB)
    image.images.answers["Verify"] = [mended, sound]
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    assert await image.lines("verify", "--repair", "--username", "me") == [
        "REPAIRED docker.io/library/web:1 0123456789ab 1 MiB",
        "one",
        "two",
        "fetched layer sha256:aa",
        "rebuilt filesystem image sha256:bb: of the layers kept here",
        "sound docker.io/library/web:1 0123456789ab 9 MiB",
    ]
    assert image.error == ""
    image.images.answers["Verify"] = [left, mended]
    shown = await image.lines("verify", "--repair", "x", status=1)
    assert shown[:4] == [
        "DAMAGED bare@sha256:beef 999999999999 1 MiB",
        "three",
        "failed layer sha256:cc: no such image",
        "still, three",
    ]
    assert image.error == ""
    assert image.images.asked == [
        pb.VerifyRequest(repair=True, username="me", password="secret"),
        pb.VerifyRequest(images=["x"], repair=True),
    ]
    # A daemon without repair reports the faults alone.
    image.images.answers["Verify"] = [pb.VerifyEvent(image=BARE, faults=["three"])]
    await image.lines("verify", "--repair", status=1)
    await image.lines("verify", status=1)
    assert "not the registry's: --repair mends them" in image.error


async def test_collect_tells_of_unfinished_pulls(image: Command) -> None:
    image.images.answers["Collect"] = pb.CollectResponse(freed_bytes=12 * MIB, unfinished_bytes=5 * MIB)
    await image.lines("gc")
    assert image.error == "freed 12 MiB\nlayers of unfinished pulls: 5 MiB\n"
    await image.lines("gc", "--dry-run")
    assert image.error == "layers of unfinished pulls: 5 MiB\n"


async def test_collect_frees_unused_images(image: Command) -> None:
    image.images.answers["Collect"] = pb.CollectResponse(removed=[BARE], freed_bytes=12 * MIB)
    lines = await image.lines("gc")
    assert len(lines) == 2 and lines[1].startswith("999999999999 2 MiB")
    assert lines[1].endswith("bare@sha256:beef")
    assert image.error == "freed 12 MiB\n"
    assert len(await image.lines("gc", "--dry-run")) == 2
    assert image.error == ""
    assert image.images.asked == [pb.CollectRequest(), pb.CollectRequest(dry_run=True)]
    assert json.loads(await image.raw("gc", "--output", "json"))["freed_bytes"] == str(12 * MIB)


async def test_a_watch_shows_pulls(image: Command) -> None:
    layers = [
        pb.PartProgress(name="sha256:aa", bytes=MIB, total_bytes=2 * MIB),
        pb.PartProgress(name="sha256:bb", bytes=2 * MIB, total_bytes=6 * MIB),
    ]
    pulls = [
        pb.PullProgress(name="web:1", stage=pb.PULL_STAGE_FETCHING, layers=layers),
        pb.PullProgress(name="web:2", stage=pb.PULL_STAGE_RESOLVING),
        pb.PullProgress(name="web:3", stage=pb.PULL_STAGE_BUILDING, layers=layers[:1]),
        pb.PullProgress(name="web:4"),
    ]
    image.images.answers["WatchPulls"] = [pb.WatchPullsEvent(pulls=pulls), pb.WatchPullsEvent()]
    assert await image.lines("watch") == [
        "web:1 fetching 3 MiB of 8 MiB",
        "web:2 resolving 0 MiB of 0 MiB",
        "web:3 building 1 MiB of 2 MiB",
        "web:4 0 MiB of 0 MiB",
        "nothing is being pulled",
    ]
    first, second = (await image.raw("watch", "--output", "json")).splitlines()
    assert json.loads(first)["pulls"][1]["layers"] == [] and json.loads(second) == {"pulls": []}


async def test_a_pulled_image_is_shown(image: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("secret \r\nmore"))
    progress = pb.PullEvent(progress=pb.PullProgress(name="web", stage=pb.PULL_STAGE_RESOLVING))
    image.images.answers["Pull"] = [progress, pb.PullEvent(image=WEB)]
    lines = await image.lines("pull", "web")
    assert len(lines) == 4 and lines[1].startswith("0123456789ab 7 MiB 3 yes")
    answer = json.loads(await image.raw("pull", "web", "--username", "me", "--output", "json"))
    assert answer["id"] == ID
    assert image.images.asked == [
        pb.PullRequest(name="web"),
        pb.PullRequest(name="web", username="me", password="secret "),
    ]
