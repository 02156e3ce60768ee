"""``make run`` and ``make demo`` as a newcomer meets them: the programs themselves, and their remains."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import tarfile
import termios
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.local_run import ROOT, nothing_left, processes_of, remove_pods, running
from tools.localnode import images, network, registry
from tools.localnode.cri_client import Client
from xenpod_proto.cri.v1 import runtime_pb2 as cri

pytestmark = pytest.mark.root

HOST = "registry.run.example"
IMAGE = f"{HOST}/busybox:1"
COLUMNS = 80


async def protect(folder: Path, *words: str, stdin: bytes = b"") -> tuple[int, str]:
    """Status and output of the protect command on the node in the folder."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "protectctl", *words, cwd=ROOT, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(stdin), 120)
    assert process.returncode is not None
    return process.returncode, out.decode()


async def operate(folder: Path, pod: str, container: str) -> None:
    """An operator's actions on a running zone: by the pod's name, from another process."""
    sockets = ("--socket", str(folder / "run/protect/protect.sock"))
    both = (*sockets, "--cri-socket", str(folder / "run/xenpod/cri.sock"))
    (name,) = [
        line.split()[1] for line in (await protect(folder, "zone", "list", *sockets))[1].splitlines()[1:]
    ]
    assert await protect(folder, "zone", "logs", name, *both) == (0, "it runs\n")
    script = 'read line; echo "$line from $MINE"; echo oops >&2; exit 7'
    status, said = await protect(
        folder,
        "zone",
        "exec",
        *sockets,
        "-i",
        "-e",
        "MINE=here",
        name,
        "--",
        "sh",
        "-c",
        script,
        stdin=b"hello\n",
    )
    assert status == 7 and sorted(said.splitlines()) == ["hello from here", "oops"]
    assert await protect(folder, "workload", "exec", *sockets, container[:8], "--", "id", "-u") == (0, "0\n")
    words = [*sockets, "-i", "-t", name, "--", "sh", "-c", "test -t 0 && echo $TERM here; exit 4"]
    on_terminal = " ".join(map(shlex.quote, [sys.executable, "-m", "protectctl", "zone", "exec", *words]))
    typed = await asyncio.create_subprocess_exec(
        "script", "--quiet", "--return", "--command", f"TERM=vt52 {on_terminal}", "/dev/null",
        cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert b"vt52 here" in (await asyncio.wait_for(typed.communicate(), 120))[0] and typed.returncode == 4
    top = await protect(folder, "zone", "top", *sockets, "--interval", "0.1", "-o", "name")
    assert top == (0, f"{pod}\n")
    status, said = await protect(folder, "host", "overhead", *sockets, "--zones", "1", "--idle", "0.1")
    assert status == 0 and "podFixed:" in said, said
    assert len((await protect(folder, "zone", "list", *sockets, "-o", "name"))[1].split()) == 1
    paused = await protect(folder, "zone", "pause", name, *sockets)
    assert paused == (0, ""), paused[1]
    status, said_then = await protect(folder, "workload", "exec", *sockets, container[:8], "--", "id")
    assert status != 0 and f"it is paused (protect zone resume {pod})" in said_then
    assert (await protect(folder, "zone", "resume", name, *sockets)) == (0, "")
    await diagnose(folder, both, pod)


async def fit(folder: Path, pod: str, container: str) -> None:
    """Each table fits a terminal of 80 columns, and has the id by which to go on."""
    socket = ("--socket", str(folder / "run/protect/protect.sock"))
    cri_socket = ("--cri-socket", str(folder / "run/xenpod/cri.sock"))
    shown = {
        "zone list": pod[:8],
        f"zone inspect {pod}": pod,
        "zone top --count 1 --interval 0.1": pod[:8],
        "workload list": container[:8],
        f"workload inspect {container}": container,
        "image list": "busybox",
        "host": "fake",
        "host info": "fake",
        "host capacity": "MiB",
        "device list": "ZONE",
        "reservation list": "ZONE",
        "--help": "zone",
        "generate --help": "WHAT",
    }
    for verb, text in shown.items():
        words = verb.split()
        words += [] if "--help" in verb else cri_socket if words[0] == "image" else socket
        words += cri_socket if verb in ("host", "host info") else []
        said = await asyncio.to_thread(_on_terminal, [sys.executable, "-m", "protectctl", *words])
        assert text in said, verb
        assert not [line for line in said.splitlines() if len(line) > COLUMNS], verb


def _on_terminal(command: list[str]) -> str:
    """Output of a command on a terminal, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    process = subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # EIO: nobody has the far end open any more
        while piece := os.read(ours, 65536):
            said += piece
    os.close(ours)
    process.wait(60)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())


async def following(folder: Path, client: Client) -> None:
    """``zone logs --follow`` shows what comes, also after the log was rotated, and ends with the zone."""
    sockets = ("--socket", str(folder / "run/protect/protect.sock"))
    both = (*sockets, "--cri-socket", str(folder / "run/xenpod/cri.sock"))
    pod = await client.run_pod("ends")
    made = await client.create(pod, IMAGE, ["sh", "-c", "echo begins; exec sleep 1000"])
    await client.start(made)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "protectctl", "zone", "logs", pod.id[:12], "-f", *both, cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(120):
        assert await process.stdout.readline() == b"begins\n"
        for word in ("more", "after"):
            await client.exec(made, "sh", "-c", f"echo {word} >/proc/1/fd/1")
            assert await process.stdout.readline() == f"{word}\n".encode()
            status = await client.runtime.ContainerStatus(cri.ContainerStatusRequest(container_id=made))
            log = Path(status.status.log_path)
            await asyncio.to_thread(log.rename, log.with_suffix(".rotated"))
            await client.runtime.ReopenContainerLog(cri.ReopenContainerLogRequest(container_id=made))
        assert await protect(folder, "zone", "pause", pod.id, *sockets) == (0, "")
        await client.remove_pod(pod.id)  # also a paused zone
        assert (await process.stdout.read(), await process.wait()) == (b"", 0)


async def diagnose(folder: Path, sockets: tuple[str, ...], pod: str) -> None:
    """A node with running pods is healthy, and its bundle has the pods."""
    files = ("--config", str(folder / "protectd.toml"), "--cri-config", str(folder / "cri.toml"))
    bundle = folder / "bundle.tar.gz"
    said = await protect(folder, "doctor", *sockets, *files, "--all", "--bundle", str(bundle))
    assert said[0] == 0 and "FAILED" not in said[1], said[1]
    with tarfile.open(bundle) as tar:
        zones = tar.extractfile("xenpod-doctor/state/zones.json")
        assert zones is not None and [one["id"] for one in json.load(zones)["zones"]] == [pod]
        assert {f"xenpod-doctor/consoles/{pod}", "xenpod-doctor/state/cri-status.json"} <= set(tar.getnames())


def steps_of(picture: str) -> list[str]:
    """What was done, by a picture of the demo, without the pod's address."""
    texts = [text.replace("\xa0", " ").strip() for text in ElementTree.fromstring(picture).itertext()]
    return [step.partition(" to ")[0] for mark, step in pairwise(filter(None, texts)) if mark == "✓"]


async def test_pods_go_on_between_runs_and_are_removed_when_asked(short_path: Path) -> None:
    folder = short_path / "n"
    async with registry.serve_registry(short_path / "registry") as address:
        await asyncio.to_thread(images.push, address, IMAGE.partition("/")[2], images.busybox())
        registry.mirror(folder / "certs.d", HOST, address)
        async with running(folder, "first") as run:
            image = await run.client.pull(IMAGE)
            pod = await run.client.run_pod("goes-on")
            command = ["sh", "-c", "echo it runs; exec sleep 1000"]
            container = await run.client.create(pod, image, command)
            await run.client.start(container)
            await operate(folder, pod.id, container)
            asked = ("grep", "CapEff", "/proc/self/status")
            theirs = (await run.client.exec(container, *asked)).stdout.decode()
            socket = ("--socket", str(folder / "run/protect/protect.sock"))
            assert await protect(folder, "workload", "exec", *socket, container, "--", *asked) == (0, theirs)
            await fit(folder, pod.id, container)
            await following(folder, run.client)
            said = await run.interrupt()
    assert "stopped both daemons" in said and "1 pod(s) go on" in said
    assert any("fakedom" in line for line in processes_of(folder).values())

    async with running(folder, "second") as run:
        assert await run.client.pods() == [pod.id]
        assert (await run.client.exec(container, "echo", "still here")).stdout == b"still here\n"

    assert "removed 1 pod(s)" in await remove_pods(folder)
    await nothing_left(folder)


async def test_a_run_without_pods_at_its_end_leaves_nothing(short_path: Path) -> None:
    folder = short_path / "n"
    async with registry.serve_registry(short_path / "registry") as address:
        await asyncio.to_thread(images.push, address, IMAGE.partition("/")[2], images.busybox())
        registry.mirror(folder / "certs.d", HOST, address)
        async with running(folder, "run") as run:
            pod = await run.client.run_pod("short")
            assert Path("/sys/class/net", network.bridge_for(str(folder)).name).exists()
            await run.client.remove_pod(pod.id)
            assert "go on" not in (await run.interrupt()).partition("stopped both daemons")[2]
    await nothing_left(folder)


async def test_failed_start_of_a_daemon_shows_the_daemons_message(short_path: Path) -> None:
    folder = short_path / "n"
    folder.mkdir()
    (folder / "cri.toml").write_text("colour = 1\n")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tools.localnode.run", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "unknown key 'colour'" in done.stdout
    await nothing_left(folder)


async def test_death_of_a_daemon_ends_the_run(short_path: Path) -> None:
    folder = short_path / "n"
    async with running(folder, "run") as run:
        (protectd,) = (pid for pid, line in processes_of(folder).items() if " -m protect " in line)
        os.kill(protectd, signal.SIGKILL)
        async with asyncio.timeout(60):
            assert await run.process.wait() == 1
        assert "protectd ended by itself" in run.log.read_text()
    await nothing_left(folder)


async def test_the_demo_tells_its_story_and_leaves_nothing(short_path: Path) -> None:
    folder = short_path / "d"
    folder.mkdir()
    done = await asyncio.to_thread(
        subprocess.run,
        [
            sys.executable, "-m", "tools.localnode.demo", "--folder", str(folder),
            "--picture", str(folder / "x.svg"),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    steps = steps_of((folder / "x.svg").read_text())
    assert len(steps) > 10 and steps == steps_of((ROOT / "docs/examples/demo.svg").read_text())
    for said in ("RunPodSandbox", "hello from demo", "served from inside the zone", "ExecSync", "init"):
        assert said in done.stdout
    assert "NO SECURITY BOUNDARY" in done.stdout
    assert "everything removed" in done.stdout
    await nothing_left(folder)


async def test_failed_demo_reports_the_failure_and_leaves_nothing(short_path: Path) -> None:
    """The agent cannot start: the zone's root tree is missing."""
    folder = short_path / "d"
    folder.mkdir()
    (folder / "protectd.toml").write_text(f'guest_dir = "{short_path}/none"\n')
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tools.localnode.demo", "--folder", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "failed: " in done.stdout and "Traceback" not in done.stdout + done.stderr
    await nothing_left(folder)
