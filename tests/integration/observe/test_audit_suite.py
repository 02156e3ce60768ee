"""The audit log beside independent records: a proxy's view of the calls, and the metrics' counts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest

from daemonkit.rpc.channels import channel
from tests.support.cri.cri_daemons import IMAGE, CriNode, needs_node
from tests.support.cri.critest_images import HOSTS, every_image
from tests.support.observe import audited
from tests.support.observe.call_record import PLANTED, PULLED_AS, CallRecord, recording
from tools.localnode import images, network, registry
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node]

PODS = 6


@dataclass
class RecordedNode:
    """A node behind a proxy."""

    node: CriNode
    socket: Path
    record: CallRecord

    async def check(self) -> int:
        """Compare what is known of both daemons; how many entries xenpod-cri has."""
        found = await audited.node_agrees(self.node, PLANTED, PULLED_AS)
        ours = audited.entries(audited.folders(self.node)[0])
        assert audited.out_of_order(ours, self.record.calls) == ""
        return found


@pytest.fixture
async def recorded(tmp_path: Path) -> AsyncIterator[RecordedNode]:
    node = CriNode(tmp_path, settings=dict(audited.ON))
    node.configure(handlers={"xenpod": {"host_namespaces": "zone"}})
    node.protectd.configure(**audited.ON)
    # The suite wants host ports, too.
    network.write_conflist(node.conf_dir, node.bridge, node.addresses, masquerade=True)
    socket = tmp_path / "recorded.sock"
    await node.start()
    try:
        async with recording(node.daemon.socket, socket) as record:
            yield RecordedNode(node, socket, record)
    finally:
        await node.close()


async def live(client: Client, image: str, name: str) -> None:
    """A pod's life, with failed calls, and a call whose caller does not wait."""
    pod = await client.run_pod(name)
    container = await client.create(pod, image, ["sh", "-c", f": {PLANTED}; sleep 1000"])
    await client.start(container)
    await client.exec(container, "echo", PLANTED)
    runtime = client.runtime
    with contextlib.suppress(grpc.aio.AioRpcError):
        await runtime.ExecSync(cri.ExecSyncRequest(container_id=container, cmd=["sleep", "100"]), timeout=0.5)
    for wrong in (
        runtime.StartContainer(cri.StartContainerRequest(container_id=container)),
        runtime.RemoveContainer(cri.RemoveContainerRequest()),
        client.image.PullImage(cri.PullImageRequest(image=cri.ImageSpec(image=f"127.0.0.1:9/{name}:1"))),
    ):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await wrong
    await client.pods()
    await client.remove_container(container)
    await client.remove_pod(pod.id)


async def test_pods_at_once_are_in_the_log_in_order(recorded: RecordedNode, tmp_path: Path) -> None:
    async with registry.serve_registry(tmp_path / "registry") as address, channel(recorded.socket) as link:
        images.push(address, IMAGE.partition("/")[2], images.busybox())
        registry.mirror(recorded.node.certs, IMAGE.partition("/")[0], address)
        client = Client(link, recorded.node.logs)
        image = await client.pull(IMAGE)
        await asyncio.gather(*(live(client, image, f"pod-{number}") for number in range(PODS)))
    assert await recorded.check() >= PODS * 11


@pytest.mark.skipif(shutil.which("critest") is None, reason="critest is not on PATH")
@pytest.mark.timeout(1800)
async def test_critest_is_in_the_log_whole(recorded: RecordedNode, tmp_path: Path) -> None:
    async with registry.serve_registry(tmp_path / "registry") as address:
        for name, image in every_image(tmp_path).items():
            await asyncio.to_thread(images.push, address, name, image)
        for host in HOSTS:
            registry.mirror(recorded.node.certs, host, address)
        passed = await critest(recorded.socket, tmp_path)
    assert passed > 100
    assert await recorded.check() > 500


async def critest(socket: Path, folder: Path) -> int:
    """Run the whole suite, with any result; the number of passed specs."""
    report, endpoint = folder / "critest.json", f"unix://{socket}"
    (folder / "crictl.yaml").write_text("{}\n")
    (folder / "tmp").mkdir()
    with (folder / "critest.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "critest",
            *("-config", str(folder / "crictl.yaml")),
            *("-runtime-endpoint", endpoint, "-image-endpoint", endpoint),
            *("-ginkgo.no-color", "-ginkgo.json-report", str(report)),
            # A digest of an image that nobody else can make.
            *("-ginkgo.skip", "public image with digest"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(folder / "tmp")},
        )
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    specs = [spec for suite in json.loads(report.read_text()) for spec in suite["SpecReports"]]
    return sum(spec["LeafNodeType"] == "It" and spec["State"] == "passed" for spec in specs)
