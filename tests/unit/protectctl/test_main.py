"""The protect command against a server of the same contract, and its errors."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from daemonkit.config import load_config
from daemonkit.faults import Refused, Unreachable
from daemonkit.rpc.server import serve_unix
from protect.assembly import Assembly
from protect.config import ProtectdConfig
from protect.workloads import start
from protectctl.__main__ import main
from protectctl.usage.arguments import parser
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.protect_node import running, workload_spec, zone_spec
from tests.support.waiting import until
from xenpod_proto.images.v1 import images_pb2, images_pb2_grpc

ROOT = Path(__file__).parents[3]


class Images(images_pb2_grpc.ImagesServicer):
    """Imports nothing, and keeps the requests."""

    answer = ""

    async def List(  # noqa: N802
        self, request: images_pb2.ListRequest, context: object
    ) -> images_pb2.ListResponse:
        raise Refused("list images", "", self.answer)

    async def Pull(  # noqa: N802
        self, request: images_pb2.PullRequest, context: object
    ) -> AsyncIterator[images_pb2.PullEvent]:
        raise Unreachable("pull", request.name, "Connection refused")
        yield

    async def Import(
        self,
        request: images_pb2.ImportRequest,
        context: grpc.aio.ServicerContext[images_pb2.ImportRequest, images_pb2.ImportResponse],
    ) -> images_pb2.ImportResponse:
        image = images_pb2.ImportedImage(name=request.name, id=request.path, size_bytes=5 << 20)
        return images_pb2.ImportResponse(images=[image])


@pytest.fixture
async def protectd(tmp_path: Path) -> AsyncIterator[Assembly]:
    async with running(tmp_path, MemoryToolstack()) as protectd:
        await protectd.launcher.launch(zone_spec())
        await protectd.creation.create(workload_spec(tmp_path))
        await start.start(protectd.registry, protectd.ports.volumes, "w1")
        yield protectd


@pytest.fixture
async def served(tmp_path: Path, protectd: Assembly) -> AsyncIterator[Path]:
    def add(server: grpc.aio.Server) -> None:
        protectd.add_services(server)
        images_pb2_grpc.add_ImagesServicer_to_server(Images(), server)

    socket = tmp_path / "protect.sock"
    async with serve_unix(socket, add, name="test", grace=0.1):
        yield socket


async def test_a_watch_shows_events(
    served: Path, capsys: pytest.CaptureFixture[str], protectd: Assembly
) -> None:
    watching = asyncio.create_task(protect("watch", "--socket", str(served)))
    await until(lambda: len(protectd.registry.hub._watchers) == 1)
    await protectd.workload_removal.delete("w1")
    protectd.stop()
    assert await watching == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "zone z1 running",
        "workload w1 running",
        "synced",
        "workload w1 running",
        "workload w1 gone",
    ]


async def protect(*arguments: str) -> int:
    """The command, in a thread with its own event loop."""
    return await asyncio.to_thread(main, list(arguments))


async def test_lists_are_tables(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await protect("zone", "list", "--socket", str(served)) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["ZONE", "NAME", "STATE"]
    assert row.split()[:5] == ["z1", "web", "running", "256", "MiB"]
    assert await protect("workload", "list", "--socket", str(served), "--zone", "z1") == 0
    assert "w1" in capsys.readouterr().out
    assert await protect("zone", "inspect", "z1", "--socket", str(served)) == 0
    assert "pid 1" in capsys.readouterr().out
    assert await protect("workload", "inspect", "w1", "--socket", str(served)) == 0
    assert "running" in capsys.readouterr().out
    assert await protect("host", "--socket", str(served)) == 0
    assert "memory only" in capsys.readouterr().out


async def test_json_output_has_the_zones(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await protect("zone", "list", "--socket", str(served), "--output", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["zones"][0]["id"] == "z1"
    assert answer["zones"][0]["death_reason"] == ""


async def test_a_zone_is_destroyed_by_its_id(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await protect("zone", "destroy", "z1", "nobody", "--socket", str(served)) == 0
    assert await protect("zone", "inspect", "z1", "--socket", str(served)) == 1
    error = capsys.readouterr().err
    assert "zone z1: there is none" in error and "NOT_FOUND" in error


async def test_an_import_shows_its_images(
    served: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(served.parent)
    assert await protect("image", "import", "layout", "--name", "me:1", "--cri-socket", str(served)) == 0
    assert "me:1" in capsys.readouterr().out
    command = ("image", "import", "layout", "--output", "json", "--cri-socket", str(served))
    assert await protect(*command) == 0
    assert json.loads(capsys.readouterr().out)["images"][0]["id"] == str(served.parent / "layout")


async def test_no_terminal_obeys_an_error(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Images.answer = "the registry says \x1b[2J\nprotect: all is well\u202e"
    assert await protect("image", "list", "--cri-socket", str(served)) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error[:-1].isprintable() and r"says \x1b[2J\nprotect: all" in error


async def test_missing_daemon_is_reported_with_its_socket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await protect("zone", "list", "--socket", str(tmp_path / "none.sock")) == 3
    assert f"nobody serves {tmp_path / 'none.sock'}" in capsys.readouterr().err


async def test_somebody_else_is_away(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An answering daemon runs, even if a registry does not."""
    assert await protect("image", "pull", "away.example/x", "--cri-socket", str(served)) == 1
    assert "pull away.example/x: Connection refused [UNAVAILABLE]" in capsys.readouterr().err


async def test_a_socket_of_a_dead_daemon_has_advice(tmp_path: Path) -> None:
    left = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    assert await protect("zone", "list", "--socket", str(left)) == 3


@pytest.mark.parametrize("arguments", [[], ["zone"], ["zone", "inspect"], ["nothing"]])
def test_wrong_usage_is_an_error(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_the_example_is_the_defaults() -> None:
    assert load_config(ProtectdConfig, ROOT / "packaging" / "protectd.toml") == ProtectdConfig(
        profiles={"default": ProtectdConfig().profile("")}
    )


def test_every_key_is_in_the_example() -> None:
    """Also the keys in comments, which have no default to show."""
    text = (ROOT / "packaging" / "protectd.toml").read_text()
    from dataclasses import fields, is_dataclass

    def keys(value: object) -> list[str]:
        found = []
        for field in fields(value):  # type: ignore[arg-type]
            inner = getattr(value, field.name)
            found += [field.name, *(keys(inner) if is_dataclass(inner) else [])]
        return found

    missing = [
        key for key in [*keys(ProtectdConfig()), *keys(ProtectdConfig().profile(""))] if key not in text
    ]
    assert missing == []


HEAVY = (
    "cattrs",
    "opentelemetry",
    "prometheus_client",
    "rich",
    "ruamel.yaml",
    "daemonkit.observe",
    "daemonkit.rpc.interceptors",
    "protectctl.cluster",
    "protectctl.host",
    "protectctl.image",
    "cluster.objects",
)
"""Modules that a list of zones does not load; their import takes longer than all needed modules."""


def test_a_list_of_zones_imports_little(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from protectctl.__main__ import main\n"
        f"assert main(['zone', 'list', '--socket', {str(tmp_path / 'none')!r}]) == 3\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_generate_has_its_arguments() -> None:
    for noun in ("", "generate"):
        assert parser(noun).parse_args(["generate", "classes", "--no-taint"]).no_taint
