"""Rows of sandboxes and containers: their format on the disk never changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cri.state import rows
from cri.state.attachment import Attachment, Chain, Plugin
from cri.state.container import Container, ContainerExit, ContainerImage, ContainerPhase
from cri.state.sandbox import Sandbox, SandboxPhase
from daemonkit.faults import Broken
from xenpod_proto.cri.v1 import runtime_pb2 as cri

PLUGINS = (
    Plugin("bridge", {"type": "bridge", "ipam": {"ranges": [[{"subnet": "10.0.0.0/8"}]]}}),
    Plugin("portmap", {"type": "portmap"}, frozenset({"portMappings", "bandwidth"})),
)
PLACE = Attachment(
    "s1",
    Path("/run/netns/s1"),
    "eth0",
    Chain("net", "1.0.0", PLUGINS, "10-net.conflist"),
    {"K8S_POD_NAME": "web"},
    {"portMappings": [{"hostPort": 80, "containerPort": 8080}]},
    {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/8", "interface": 1}]},
    ("10.0.0.2", "fd00::2"),
)
PLACE_TEXT = (
    '{"container_id": "s1", "netns": "/run/netns/s1", "interface": "eth0", "chain": {"name": "net", '
    '"version": "1.0.0", "source": "10-net.conflist", "plugins": [{"type": "bridge", "config": {"type": '
    '"bridge", "ipam": {"ranges": [[{"subnet": "10.0.0.0/8"}]]}}, "capabilities": []}, {"type": "portmap", '
    '"config": {"type": "portmap"}, "capabilities": ["bandwidth", "portMappings"]}]}, "args": '
    '{"K8S_POD_NAME": "web"}, "runtime_config": {"portMappings": [{"hostPort": 80, "containerPort": 8080}]}, '
    '"result": {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/8", "interface": 1}]}, "addresses": '
    '["10.0.0.2", "fd00::2"]}'
)
POD = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="web", uid="u"), labels={"a": "b"})
SANDBOX = Sandbox("s1", SandboxPhase.DEAD, 5, "xenpod", POD, PLACE, "crash", "sha256:9", ("empty-dir",))
SANDBOX_ROW = (
    "s1", "dead", 5, "xenpod", POD.SerializeToString(), PLACE_TEXT, "crash", "sha256:9", '["empty-dir"]',
)  # fmt: skip

CONFIG = cri.ContainerConfig(metadata=cri.ContainerMetadata(name="main"), log_path="0.log")
CONTAINER = Container(
    id="c1",
    sandbox_id="s1",
    phase=ContainerPhase.EXITED,
    created_ns=6,
    config=CONFIG,
    image=ContainerImage("sha256:1", "x@sha256:2"),
    log_path="/logs/0.log",
    process='{"user": {}}',
    stop_signal=15,
    started_ns=7,
    exit=ContainerExit(9, 137, "OOMKilled", "message"),
    volume_images=("sha256:3", "sha256:4"),
)
CONTAINER_ROW = (
    "c1", "s1", "exited", 6, 7, CONFIG.SerializeToString(), "sha256:1", "x@sha256:2", "/logs/0.log",
    '{"user": {}}', 15, 9, 137, "OOMKilled", "message", '["sha256:3", "sha256:4"]',
)  # fmt: skip
RUNNING = replace(CONTAINER, phase=ContainerPhase.RUNNING, exit=None, volume_images=())
RUNNING_ROW = (*CONTAINER_ROW[:2], "running", *CONTAINER_ROW[3:11], None, None, None, None, "[]")


def test_an_attachment_keeps_its_text() -> None:
    assert json.loads(PLACE.to_json()) == json.loads(PLACE_TEXT)
    assert Attachment.from_json(PLACE_TEXT) == PLACE
    planned = replace(PLACE, result=None, addresses=(), runtime_config={})
    assert json.loads(planned.to_json())["result"] is None
    assert Attachment.from_json(planned.to_json()) == planned


def test_a_sandbox_keeps_its_row() -> None:
    row = rows.of_sandbox(SANDBOX)
    assert json.loads(row[5]) == json.loads(PLACE_TEXT)
    assert row[:5] + row[6:] == SANDBOX_ROW[:5] + SANDBOX_ROW[6:]
    assert rows.to_sandbox(SANDBOX_ROW) == SANDBOX


@pytest.mark.parametrize(("container", "row"), [(CONTAINER, CONTAINER_ROW), (RUNNING, RUNNING_ROW)])
def test_a_container_keeps_its_row(container: Container, row: rows.Row) -> None:
    assert rows.of_container(container) == row
    assert rows.to_container(row) == container


@pytest.mark.parametrize(
    ("column", "value", "cause"),
    [
        (1, "odd", "read state pod sandbox s1: key 'phase': 'odd' is not one of 'creating', "),
        (2, "5", "key 'created_ns': want an integer, got a string"),
        (4, b"\xff", "key 'config': not a PodSandboxConfig"),
        (4, "text", "key 'config': want bytes, got a string"),
        (5, "{}", "attachment: key 'container_id' is missing"),
        (5, "{", "attachment: Expecting property name"),
        (5, PLACE_TEXT.replace('"eth0"', "7"), "key 'interface': want a string, got an integer"),
        (5, PLACE_TEXT.replace('{"type": "portmap"}', "[]"), "key 'chain.plugins[1].config': want a table"),
        (5, PLACE_TEXT.replace('["10.0.0.2", ', "[2, "), "key 'addresses[0]': want a string, got an integer"),
    ],
)
def test_an_impossible_sandbox_is_refused(column: int, value: Any, cause: str) -> None:
    with pytest.raises(Broken) as caught:
        rows.to_sandbox((*SANDBOX_ROW[:column], value, *SANDBOX_ROW[column + 1 :]))
    assert cause in str(caught.value)


@pytest.mark.parametrize(
    ("column", "value", "cause"),
    [
        (6, None, "read state container c1: key 'image.id': want a string, got nothing"),
        (12, None, "key 'exit.code': want an integer, got nothing"),
        (15, "[1]", "key 'volume_images[0]': want a string, got an integer"),
        (15, '"sha256:3"', "key 'volume_images': want an array, got a string"),
    ],
)
def test_an_impossible_container_is_refused(column: int, value: Any, cause: str) -> None:
    with pytest.raises(Broken) as caught:
        rows.to_container((*CONTAINER_ROW[:column], value, *CONTAINER_ROW[column + 1 :]))
    assert cause in str(caught.value)
