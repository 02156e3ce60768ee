"""Exec, Attach and PortForward: requests without a URL as the result."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from tests.support.cri.cri_node import Rig, rig
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = pytest.mark.asyncio(loop_scope="module")

INVALID = grpc.StatusCode.INVALID_ARGUMENT
REFUSED = grpc.StatusCode.FAILED_PRECONDITION

BAD: list[tuple[str, str, dict[str, Any], str]] = [
    ("no streams", "Exec", {"cmd": ["ls"]}, "none of stdin, stdout and stderr"),
    (
        "stderr beside a terminal",
        "Exec",
        {"cmd": ["ls"], "tty": True, "stderr": True},
        "no stderr of its own",
    ),
    ("no command", "Exec", {"stdout": True}, "no command"),
    ("an empty command", "Exec", {"cmd": ["", "x"], "stdout": True}, "no command"),
    ("a NUL in the command", "Exec", {"cmd": ["a\0b"], "stdout": True}, "NUL"),
    ("no streams", "Attach", {}, "none of stdin, stdout and stderr"),
    ("stderr beside a terminal", "Attach", {"tty": True, "stdout": True, "stderr": True}, "no stderr"),
    ("port 0", "PortForward", {"port": [80, 0]}, "between 1 and 65535"),
    ("a port beyond", "PortForward", {"port": [65536]}, "between 1 and 65535"),
    ("many ports", "PortForward", {"port": range(1, 66)}, "at most 64"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with rig(tmp_path_factory.mktemp("urls")) as made:
        yield made


async def asked(node: Rig, call: str, subject: str, **fields: Any) -> str:
    key = "pod_sandbox_id" if call == "PortForward" else "container_id"
    request = getattr(cri, f"{call}Request")(**{key: subject}, **fields)
    return str((await getattr(node.cri, call)(request)).url)


async def refusal(node: Rig, call: str, subject: str, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asked(node, call, subject, **fields)
    return raised.value.code(), raised.value.details() or ""


@pytest.mark.parametrize(("call", "fields", "words"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
async def test_invalid_stream_request_is_refused(
    node: Rig, call: str, fields: dict[str, Any], words: str
) -> None:
    pod = await node.pod(f"bad-{len(node.daemon.records.sandboxes.all())}")
    subject = pod if call == "PortForward" else await node.started(pod)
    code, text = await refusal(node, call, subject, **fields)
    assert code is INVALID and words in text


async def test_only_running_containers_have_streams(node: Rig) -> None:
    pod = await node.pod("ends")
    container = await node.container(pod)
    for call in ("Exec", "Attach"):
        fields: dict[str, Any] = {"cmd": ["ls"]} if call == "Exec" else {}
        code, text = await refusal(node, call, container, stdout=True, **fields)
        assert code is REFUSED and "it is created" in text
    await node.cri.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    code, text = await refusal(node, "PortForward", pod, port=[80])
    assert code is REFUSED and "it is stopped" in text


async def test_running_pod_and_container_have_stream_urls(node: Rig) -> None:
    pod = await node.pod("runs")
    container = await node.started(pod)
    urls = [
        await asked(node, "Exec", container, cmd=["ls"], stdout=True),
        await asked(node, "Attach", container, stdout=True),
        await asked(node, "PortForward", pod, port=[1, 65535]),
        await asked(node, "PortForward", pod, port=range(1, 65)),
    ]
    kinds = [url.split("/")[3] for url in urls]
    assert kinds == ["exec", "attach", "portforward", "portforward"] and len(set(urls)) == 4
