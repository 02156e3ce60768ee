"""The daemons of a node with the DRA driver: killed, started again, and the node rebooted."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from protect.host import mounts
from tests.support.cluster.api import PATIENCE
from tests.support.cluster.claims import Driver
from tests.support.protect.daemons import Daemon
from tests.support.waiting import until

EVERY = ("kubelet", "driver", "protectd", "cri")


def _daemons(driver: Driver) -> dict[str, Daemon]:
    node = driver.cluster.node
    return {"driver": driver.daemon, "protectd": node.protectd.daemon, "cri": node.daemon}


async def killed(driver: Driver, name: str) -> None:
    """Kill one of the four daemons by SIGKILL, and wait for its end."""
    if name == "kubelet":
        assert driver.cluster.kubelet is not None
        await driver.cluster.kubelet.crash()
    else:
        await _daemons(driver)[name].crash()


async def revived(driver: Driver, names: Sequence[str]) -> None:
    """Start all four daemons, in this order; returns once they are ready.

    No daemon waits for the daemon before, since the driver is ready when the kubelet has found the driver.
    Only the kubelet waits for CRI: without CRI the kubelet would end, and a service manager would restart the
    kubelet until CRI answers.
    """
    async with asyncio.TaskGroup() as tasks:
        serving = asyncio.Event()

        async def start(name: str) -> None:
            if name == "kubelet":
                await serving.wait()
                await driver.cluster.use_kubelet(shipped=True, wait=False)
                return
            await _daemons(driver)[name].start()
            if name == "cri":
                serving.set()

        for name in names:
            tasks.create_task(start(name))


async def reboot(driver: Driver) -> None:
    """Kill everything and every zone, remove what is in /run, detach and unmount all; start the daemons."""
    node = driver.cluster.node
    zones = await driver.cluster.zones()
    for name in EVERY:
        await killed(driver, name)
    for zone in zones:
        os.kill(zone.domain_id, signal.SIGKILL)
    await until(lambda: not any(Path(f"/proc/{zone.domain_id}").exists() for zone in zones), PATIENCE)
    for namespace in list(node.netns_dir.iterdir()):
        mounts.unmount(namespace)
        namespace.unlink()
    for point in reversed(node.leftovers().get("mounts", [])):
        while mounts.unmount(Path(point)):
            pass
    for loop in node.leftovers().get("loops", []):
        subprocess.run(["losetup", "--detach", loop], check=True)
    for folder in (node.run_dir, node.protectd.run_dir):
        shutil.rmtree(folder)
    await revived(driver, ("protectd", "cri", "driver", "kubelet"))
