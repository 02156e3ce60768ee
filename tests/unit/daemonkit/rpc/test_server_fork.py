"""A library of ours (libxl) may fork while gRPC works: the child must get to its exec, and quietly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_FORKS = 100

_PROGRAM = f"""
import asyncio, ctypes, os, sys
from pathlib import Path
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
import grpc.aio

libc = ctypes.PyDLL(None)  # as libxl does: fork() of the C library, not Python's
sys.setswitchinterval(60)  # a child in which a thread that is not there asks for the GIL would wait for it

def forks():
    statuses = set()
    for _ in range({_FORKS}):
        child = libc.fork()
        if child == 0:
            libc._exit(0)
        statuses.add(os.waitpid(child, 0)[1])
    return statuses

async def call(client):
    while True:
        try:
            await client.unary_unary("/nobody/serves")(b"")
        except grpc.aio.AioRpcError:
            pass

async def main():
    path = Path(sys.argv[1])
    async with serve_unix(path, lambda server: None, name="forking"), channel(path) as client:
        calls = [asyncio.create_task(call(client)) for _ in range(8)]
        print(await asyncio.to_thread(forks))
        for task in calls:
            task.cancel()

asyncio.run(main())
"""


def test_children_forked_while_grpc_works_end_as_they_like(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "{0}\n"), done.stderr
    assert "fork_posix" not in done.stderr
