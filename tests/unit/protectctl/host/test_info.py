"""``protect host``: protectd's facts, and xenpod-cri's handlers with yes or why not."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from daemonkit.rpc.server import serve_unix
from protectctl.__main__ import main
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc as cri_grpc
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

HANDLERS = {
    "xenpod": {"profile": "default", "mode": "pvh", "features": {}},
    "apart": {"profile": "default", "mode": "pvh", "seclabel": "a:b:c", "features": {}},
    "fast": {"profile": "default", "mode": "pv", "notice": "mode auto gives pv", "features": {}},
    "sev": {"profile": "default", "error": "requires label:sev-snp,\x1b[2J and it lacks it"},
}


class _Host(protect_pb2_grpc.HostServicer):
    def __init__(self, capabilities: pb.HostCapabilities | None) -> None:
        self._capabilities = capabilities

    async def Info(self, request: pb.InfoRequest, context: object) -> pb.InfoResponse:
        return pb.InfoResponse(
            version="0", toolstack="memory", cpus=2, profiles=["default"], capabilities=self._capabilities
        )


class _Runtime(cri_grpc.RuntimeServiceServicer):
    async def Status(
        self,
        request: cri.StatusRequest,
        context: grpc.aio.ServicerContext[cri.StatusRequest, cri.StatusResponse],
    ) -> cri.StatusResponse:
        assert request.verbose
        return cri.StatusResponse(info={"handlers": json.dumps(HANDLERS)})


def _add(capabilities: pb.HostCapabilities | None, server: grpc.aio.Server) -> None:
    protect_pb2_grpc.add_HostServicer_to_server(_Host(capabilities), server)
    cri_grpc.add_RuntimeServiceServicer_to_server(_Runtime(), server)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Path]:
    can = pb.HostCapabilities(
        pv=True, hap=True, flask=True, devices=["gpu0"], absent_devices=["gpu1"], labels=["sev", "lab"]
    )
    async with serve_unix(tmp_path / "s", functools.partial(_add, can), name="test", grace=0.1):
        yield tmp_path / "s"


async def _shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, str], str]:
    """The text beside each name, and stderr."""
    assert await asyncio.to_thread(main, ["host", *words]) == 0
    said = capsys.readouterr()
    rows = (line.strip().partition("  ") for line in said.out.splitlines())
    return {name: value.strip() for name, _, value in rows}, said.err


async def test_each_handler_is_usable_or_has_its_reason(
    served: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, said = await _shown(capsys, "--socket", str(served), "--cri-socket", str(served))
    assert shown["handler xenpod"] == "yes, pvh"
    assert shown["handler apart"] == "yes, pvh, label a:b:c"
    assert shown["handler fast"] == "yes, pv, mode auto gives pv"
    assert shown["handler sev"] == "no: requires label:sev-snp,\\x1b[2J and it lacks it"
    assert shown["capabilities"] == "pv, hap, flask"
    assert (shown["devices"], shown["labels"]) == ("gpu0, gpu1 (absent)", "sev, lab")
    assert said == ""


async def test_without_protectd_its_socket_is_named(
    served: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = str(tmp_path / "nobody")
    assert await asyncio.to_thread(main, ["host", "--socket", nobody, "--cri-socket", str(served)]) == 3
    assert f"nobody serves {nobody}:" in capsys.readouterr().err


async def test_without_xenpod_cri_the_host_is_shown(
    served: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--socket", str(served), "--cri-socket", str(tmp_path / "nobody"))
    shown, said = await _shown(capsys, *words)
    assert shown["toolstack"].startswith("memory") and "handler xenpod" not in shown
    assert said.startswith("xenpod-cri does not tell its handlers: ")
    assert await asyncio.to_thread(main, ["host", *words, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["handlers"] is None


async def test_json_has_the_contracts_names_and_the_handlers(
    served: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["host", "--socket", str(served), "--cri-socket", str(served), "--output", "json"]
    assert await asyncio.to_thread(main, words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["handlers"] == HANDLERS
    assert (answer["cpus"], answer["zone_kernels"]) == (2, False)
    assert answer["capabilities"]["absent_devices"] == ["gpu1"]


async def test_an_older_protectd_says_no_capabilities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s"
    async with serve_unix(path, functools.partial(_add, None), name="test", grace=0.1):
        shown, _ = await _shown(capsys, "--socket", str(path), "--cri-socket", str(path))
    assert "capabilities" not in shown and shown["toolstack"].startswith("memory")
