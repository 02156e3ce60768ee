"""Measures the CNI plugins alone, which take a part of a pod's start and end on each side."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from uuid import uuid4

from tests.bench.measure import Samples

ADD, DEL = "CNI plugins alone, ADD", "CNI plugins alone, DEL"
STEPS = (ADD, DEL)
BIN = Path("/usr/lib/cni")


async def once(networks: Path, samples: Samples) -> None:
    """Seconds of ADD and DEL of a network's plugins, called as a runtime calls them, with nothing beside."""
    chain = json.loads(min(networks.iterdir()).read_text())
    name = f"xpb-{uuid4().hex[:8]}"
    await _run(b"", "ip", "netns", "add", name)
    try:
        await samples.time(ADD, _call("ADD", chain, name))
        await samples.time(DEL, _call("DEL", chain, name))
    finally:
        await _run(b"", "ip", "netns", "del", name)


async def _call(command: str, chain: dict[str, object], name: str) -> None:
    plugins = chain["plugins"]
    assert isinstance(plugins, list)
    result: object = None
    for plugin in plugins if command == "ADD" else reversed(plugins):
        config = {**plugin, "cniVersion": chain["cniVersion"], "name": chain["name"]}
        if result is not None:
            config["prevResult"] = result
        environment = {
            "PATH": os.environ["PATH"],
            "CNI_PATH": str(BIN),
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": name,
            "CNI_NETNS": f"/run/netns/{name}",
            "CNI_IFNAME": "eth0",
        }
        output = await _run(json.dumps(config).encode(), str(BIN / plugin["type"]), environment=environment)
        result = json.loads(output) if command == "ADD" else None


async def _run(given: bytes, *command: str, environment: dict[str, str] | None = None) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment
    )
    output, _ = await process.communicate(given)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {output.decode(errors='replace')}")
    return output
