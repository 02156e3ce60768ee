"""Labels of a node from Status; and the file for Node Feature Discovery."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.labeller.features import FeatureFile
from cluster.labeller.labels import is_ours, labels_of
from cluster.labeller.node import difference
from daemonkit.faults import Refused, Unreachable
from xenpod_proto.cri.v1 import runtime_pb2 as cri

XEN = {
    "name": "libxl",
    "securityBoundary": True,
    "xenVersion": "4.17.4-pre",
    "capabilities": {"hvm": True, "iommu": False},
}
FAKE = {"name": "fake", "securityBoundary": False, "xenVersion": "fake on Linux 6.1"}


def status(
    toolstack: object, handlers: dict[str, Any], *served: str, userns: bool = False
) -> cri.StatusResponse:
    features = cri.RuntimeHandlerFeatures(user_namespaces=userns)
    reply = cri.StatusResponse(
        runtime_handlers=[cri.RuntimeHandler(name=one, features=features) for one in served]
    )
    reply.info.update(toolstack=json.dumps(toolstack), handlers=json.dumps(handlers))
    return reply


def test_labels_of_a_node_on_xen_match_its_status() -> None:
    handlers = {
        "xenpod": {"mode": "pv"},
        "fast": {"mode": "pvh"},
        "off": {"mode": "hvm", "error": "no such profile"},
    }
    assert labels_of(status(XEN, handlers, "", "xenpod", "fast", "runc", userns=True)) == {
        "xenpod.dev/toolstack": "libxl",
        "xenpod.dev/security-boundary": "true",
        "xenpod.dev/xen-version": "4.17.4-pre",
        "xenpod.dev/xen-version.major": "4",
        "xenpod.dev/xen-version.minor": "17",
        "xenpod.dev/handler.xenpod": "true",
        "xenpod.dev/handler.fast": "true",
        "xenpod.dev/can.hvm": "true",
        "xenpod.dev/mode.pv": "true",
        "xenpod.dev/mode.pvh": "true",
        "xenpod.dev/user-namespaces": "true",
    }


def test_a_node_without_a_boundary_is_labelled() -> None:
    assert labels_of(status(FAKE, {"xenpod": {}}, "xenpod")) == {
        "xenpod.dev/toolstack": "fake",
        "xenpod.dev/security-boundary": "false",
        "xenpod.dev/handler.xenpod": "true",
    }


@pytest.mark.parametrize("toolstack", [{"error": "protectd does not answer"}, {}, [], None, {"name": 1}])
def test_incomplete_status_gives_no_labels(toolstack: object) -> None:
    with pytest.raises(Unreachable, match="read what this node can"):
        labels_of(status(toolstack, {"xenpod": {}}, "xenpod"))
    with pytest.raises(Unreachable):
        labels_of(cri.StatusResponse(info={"toolstack": "[" * 100_000}))


NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@given(st.text(), st.text(min_size=1), st.text(), st.lists(st.text(), max_size=3))
def test_every_label_is_valid(toolstack: str, version: str, mode: str, handlers: list[str]) -> None:
    said = {"name": toolstack, "securityBoundary": True, "xenVersion": version}
    details = {name: {"mode": mode} for name in handlers}
    for key, value in labels_of(status(said, details, *handlers)).items():
        prefix, _, name = key.partition("/")
        assert prefix == "xenpod.dev" and NAME.fullmatch(name) and NAME.fullmatch(value)
        assert is_ours(key)


def test_a_handler_with_an_invalid_label_name_is_left_out() -> None:
    long = "h" * 56
    found = labels_of(status(FAKE, {long: {}, long[1:]: {}}, long, long[1:]))
    assert [key for key in found if ".h" in key] == [f"xenpod.dev/handler.{long[1:]}"]


def test_an_invalid_label_name_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The labeller asks twice a minute, as long as the node exists."""
    long = "once" * 14
    for _ in range(3):
        labels_of(status(FAKE, {long: {}}, long))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_handler_of_another_runtime_is_not_ours_to_label() -> None:
    assert "xenpod.dev/handler.runc" not in labels_of(status(FAKE, {"xenpod": {}}, "runc", "xenpod"))


def test_more_handlers_than_anybody_has_are_bounded() -> None:
    names = [f"h{n}" for n in range(1000)]
    assert len(labels_of(status(FAKE, {name: {} for name in names}, *names))) < 300


def test_labels_of_operators_are_not_ours() -> None:
    others = [
        "xenpod.dev/zones",
        "xenpod.dev/platform",
        "xenpod.dev/pool",
        "kubernetes.io/os",
        "xenpod.dev/handler.",
    ]
    assert not any(is_ours(key) for key in others)
    there = dict.fromkeys(others, "x") | {"xenpod.dev/handler.old": "true", "xenpod.dev/toolstack": "fake"}
    wanted = {"xenpod.dev/toolstack": "libxl", "xenpod.dev/handler.new": "true"}
    assert difference(there, wanted) == {"xenpod.dev/handler.old": None, **wanted}
    assert difference(there | wanted, {**wanted, "xenpod.dev/handler.old": "true"}) == {}


async def test_the_file_is_written_when_something_changes(tmp_path: Path) -> None:
    folder = tmp_path / "features.d"
    file = FeatureFile(folder)
    assert await file.put({"xenpod.dev/b": "2", "xenpod.dev/a": "true"})
    path = folder / "xenpod"
    assert path.read_text().splitlines()[1:] == ["xenpod.dev/a=true", "xenpod.dev/b=2"]
    assert path.stat().st_mode & 0o777 == 0o644
    before = path.stat()
    assert not await file.put({"xenpod.dev/a": "true", "xenpod.dev/b": "2"})
    assert path.stat() == before
    with path.open() as reader:
        assert await file.put({"xenpod.dev/a": "true"})
        assert "xenpod.dev/b" in reader.read()  # the opened file stays whole
    assert "xenpod.dev/b" not in path.read_text()
    assert [entry.name for entry in folder.iterdir()] == ["xenpod"]
    assert await file.remove() and not await file.remove()
    assert list(folder.iterdir()) == []


async def test_half_written_file_of_a_killed_labeller_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".xenpod.new").write_text("half")
    assert await FeatureFile(tmp_path).put({"xenpod.dev/a": "true"})
    assert [entry.name for entry in tmp_path.iterdir()] == ["xenpod"]


async def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match=f"write features to {tmp_path}/file/features.d/xenpod"):
        await FeatureFile(tmp_path / "file/features.d").put({})
