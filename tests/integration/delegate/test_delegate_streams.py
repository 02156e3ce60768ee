"""Exec, attach and port-forward into pods of both kinds; for pods of the host the URL is containerd's."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from functools import partial

import pytest

from tests.support.cri.cri_daemons import needs_node
from tests.support.cri.stream_client import websocket
from tests.support.delegate.containerd import needs_containerd
from tests.support.delegate.mixed import HOST, KINDS, PATIENCE, Mixed
from tools.localnode.cri_client import Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = [pytest.mark.root, needs_node, needs_containerd, pytest.mark.asyncio(loop_scope="module")]

needs_crictl = pytest.mark.skipif(shutil.which("crictl") is None, reason="crictl is not on PATH")
PIPE = asyncio.subprocess.PIPE
SERVER = "mkdir /www; echo {} >/www/index.html; exec httpd -f -p 127.0.0.1:8080 -h /www"


async def run(mixed: Mixed, *arguments: str, stdin: bytes | None = None) -> tuple[int, bytes, str]:
    """Run crictl: exit status, stdout, stderr."""
    line = mixed.crictl(*arguments)
    process = await asyncio.create_subprocess_exec(
        *line, stdin=PIPE if stdin is not None else None, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(PATIENCE):
        stdout, stderr = await process.communicate(stdin)
    assert process.returncode is not None
    return process.returncode, stdout, stderr.decode()


async def of_each(mixed: Mixed, script: str, **fields: object) -> dict[str, tuple[Pod, str]]:
    """Make a pod of each kind with a container that runs the script; ``{}`` in the script is the kind."""
    made = {}
    for kind in KINDS:
        pod = await mixed.pod(f"streams-{kind}", kind)
        made[kind] = (pod, await mixed.started(pod, script.replace("{}", kind), **fields))
    return made


async def test_exec_sync_returns_outputs_and_code_for_both_kinds(mixed: Mixed) -> None:
    for _, container in (await of_each(mixed, "exec sleep 100000")).values():
        reply = await mixed.client.exec(container, "sh", "-c", "echo out; echo err >&2; exit 7")
        assert (reply.exit_code, reply.stdout, reply.stderr) == (7, b"out\n", b"err\n")


async def test_urls_belong_to_the_runtime_of_the_container(mixed: Mixed) -> None:
    urls = {}
    for kind, (_, container) in (await of_each(mixed, "exec sleep 100000")).items():
        request = cri.ExecRequest(container_id=container, cmd=["echo", "by", kind], stdout=True, stderr=True)
        urls[kind] = str((await mixed.runtime.Exec(request, timeout=PATIENCE)).url)
    servers = {url.split("/")[2] for url in urls.values()}
    assert len(servers) == 2, urls
    for kind, url in urls.items():
        # containerd before 2.0 has no v5.
        client = await websocket(url.partition("/exec")[0], url, "v4.channel.k8s.io")
        await client.until(partial(client.channel, 3))
        assert client.channel(1) == f"by {kind}\n".encode()
        client.line.close()


@needs_crictl
async def test_crictl_exec_passes_streams_and_code_for_both_kinds(mixed: Mixed) -> None:
    for _, container in (await of_each(mixed, "exec sleep 100000")).values():
        code, out, err = await run(mixed, "exec", container, "sh", "-c", "echo out; echo err >&2; exit 7")
        assert (code, out) == (1, b"out\n")
        assert err.startswith("err\n") and "exit code 7" in err
        content = bytes(range(256)) * 8192
        assert await run(mixed, "exec", "-i", container, "cat", stdin=content) == (0, content, "")


@needs_crictl
async def test_crictl_attach_leaves_containers_of_both_kinds_running(mixed: Mixed) -> None:
    for kind, (_, container) in (await of_each(mixed, "exec sh", stdin=True)).items():
        line = mixed.crictl("attach", "-i", container)
        process = await asyncio.create_subprocess_exec(*line, stdin=PIPE, stdout=PIPE)
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"echo {kind} says $((40+2))\n".encode())
            async with asyncio.timeout(PATIENCE):
                assert await process.stdout.readline() == f"{kind} says 42\n".encode()
        finally:
            process.kill()
            await process.wait()
        assert (await mixed.status(container)).state == cri.CONTAINER_RUNNING


@contextlib.asynccontextmanager
async def forwarded(mixed: Mixed, pod: str) -> AsyncIterator[int]:
    """Forward port 8080 of a pod: the local port."""
    line = mixed.crictl("port-forward", pod, "0:8080")
    process = await asyncio.create_subprocess_exec(*line, stdout=PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            said = (await process.stdout.readline()).decode()
        yield int(said.split(" -> ")[0].rpartition(":")[2])
    finally:
        process.terminate()
        await process.wait()


async def fetch(port: int) -> str:
    """Get the server's answer, once the server listens."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /index.html HTTP/1.0\r\n\r\n")
            if said := await reader.read():
                return said.decode().partition("\r\n\r\n")[2].strip()
        except ConnectionError:
            pass  # not yet listening
        finally:
            writer.close()


@needs_crictl
async def test_crictl_port_forward_reaches_pods_of_both_kinds(mixed: Mixed) -> None:
    made = await of_each(mixed, SERVER)
    for kind, (pod, container) in made.items():
        await mixed.output(container, "until wget -q -O - 127.0.0.1:8080/index.html; do sleep 0.05; done")
        async with forwarded(mixed, pod.id) as port, asyncio.timeout(PATIENCE):
            assert await fetch(port) == kind


@needs_crictl
async def test_crictl_lists_inspects_and_removes_pods_of_both_kinds(mixed: Mixed) -> None:
    made = await of_each(mixed, "exec sleep 100000")
    pods, containers = [pod.id for pod, _ in made.values()], [one for _, one in made.values()]
    for command, expected in (("pods", pods), ("ps", containers)):
        _, out, _ = await run(mixed, command, "-q", "--no-trunc")
        assert sorted(out.decode().split()) == sorted(expected)
    for kind, (pod, container) in made.items():
        code, out, _ = await run(mixed, "inspect", container)
        assert code == 0 and container in out.decode()
        code, out, _ = await run(mixed, "inspectp", pod.id)
        assert code == 0 and f'"runtimeHandler": "{kind}"' in out.decode()
    assert (await run(mixed, "rmp", "-f", made[HOST][0].id))[0] == 0
    assert await mixed.pods() == [made[KINDS[1]][0].id]
