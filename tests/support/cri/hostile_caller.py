"""What a hostile tenant has the kubelet ask for, again and again, in a process that can be stopped.

``python -m tests.support.cri.hostile_caller SOCKET LOGS KIND PLACE POD ...`` says ``hostile``, and goes on
until its input ends.  ``PLACE``: what the kind needs (names of images, or a path of the host); ``POD``: the
configurations of its pods, in hex, each after the pod's id and a colon.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import grpc.aio

from tools.localnode.cri_client import Client, Pod, connect_client
from xenpod_proto.cri.v1 import runtime_pb2 as pb

_AT_ONCE = 4
_PAUSE = 0.05
_COMMAND = ("sleep", "1")


def words(pod: Pod) -> str:
    """The pod as an argument."""
    return f"{pod.id}:{pod.config.SerializeToString().hex()}"


async def pull(client: Client, place: str, pod: Pod | None, number: int) -> None:
    """An image with a long pull, which is not kept."""
    names = place.split(",")
    name = names[number % len(names)]
    await client.pull(name)
    await client.remove_image(name)


async def fifo_log(client: Client, place: str, pod: Pod | None, number: int) -> None:
    """A container whose log is a pipe without a reader."""
    assert pod is not None
    path = Path(pod.config.log_directory) / f"pipe-{number}.log"
    os.mkfifo(path)
    try:
        await client.create(pod, place, _COMMAND, f"pipe-{number}")
    finally:
        path.unlink()


async def silent_volume(client: Client, place: str, pod: Pod | None, number: int) -> None:
    """A container with a volume on a file server that never answers."""
    assert pod is not None
    image, _, path = place.partition(",")
    mount = pb.Mount(host_path=f"{path}/{number}", container_path="/v")
    await client.create(pod, image, _COMMAND, f"silent-{number}", [mount])


KINDS: Mapping[str, Callable[[Client, str, Pod | None, int], Awaitable[None]]] = {
    "hostile pull": pull,
    "FIFO logs": fifo_log,
    "silent file server": silent_volume,
}


async def _hostile(socket: Path, logs: Path, kind: str, place: str, pods: list[Pod]) -> None:
    async with connect_client(socket, logs) as client:
        numbers = itertools.count()

        async def again(pod: Pod | None) -> None:
            while True:
                number = next(numbers)
                with suppress(grpc.aio.AioRpcError):  # the refusal or the delay is the defence
                    await KINDS[kind](client, place, pod, number)
                await asyncio.sleep(_PAUSE)

        tasks = [asyncio.ensure_future(again(pods[n % len(pods)] if pods else None)) for n in range(_AT_ONCE)]
        sys.stdout.write("hostile\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def main() -> None:
    socket, logs, kind, place, *rest = sys.argv[1:]
    pods = []
    for one in rest:
        sandbox, _, config = one.partition(":")
        pods.append(Pod(sandbox, pb.PodSandboxConfig.FromString(bytes.fromhex(config))))
    asyncio.run(_hostile(Path(socket), Path(logs), kind, place, pods))


if __name__ == "__main__":
    main()
