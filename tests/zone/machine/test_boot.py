"""The launcher and the boot: a new zone's properties, and its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from protect.channel import frames
from protect.channel.frames import Frame, Type
from tests.support.agent.zone import BUILD, Zone
from tests.support.agent.zone_client import DEADLINE, Client, Failed
from tests.support.agent.zone_specs import creation
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root


def _namespaces(pid: int | str) -> dict[str, str]:
    return {
        kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("pid", "mnt", "net", "uts", "ipc", "cgroup")
    }


def test_zone_is_made_stopped(paused_zone: Zone) -> None:
    stat = Path(f"/proc/{paused_zone.pid}/stat").read_text().rsplit(")", 1)[1].split()
    assert stat[0] == "T"
    recorded = (paused_zone.directory / "pid").read_text()
    assert recorded == f"{paused_zone.pid} {stat[19]}\n"


def test_zone_has_namespaces_of_its_own(zone: Zone) -> None:
    inside, outside = _namespaces(zone.pid), _namespaces("self")
    assert not [kind for kind in inside if inside[kind] == outside[kind]]


def test_nothing_of_the_caller_goes_in(zone: Zone) -> None:
    kinds = sorted(os.readlink(f"/proc/{zone.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{zone.pid}/fd"))
    assert kinds[0] == "/dev/null"
    assert all(kind.split(":")[0] in ("pipe", "socket", "anon_inode") for kind in kinds[1:])
    environment = Path(f"/proc/{zone.pid}/environ").read_bytes()
    assert b"XENPOD_ZONE=test" in environment and b"HOME=" not in environment


def test_the_host_cannot_be_seen(zone: Zone) -> None:
    mounts = Path(f"/proc/{zone.pid}/mounts").read_text()
    assert " /sys/fs/cgroup/unified " not in mounts
    assert not Path(f"/proc/{zone.pid}/root/usr/lib").exists()
    with pytest.raises(OSError, match="Read-only"):
        Path(f"/proc/{zone.pid}/root/new").touch()
    assert f"{zone.directory}" not in Path("/proc/self/mounts").read_text()


def test_facts_describe_the_zone(client: Client) -> None:
    assert client.hello is not None
    assert client.hello.version_min == client.hello.version_max == 1
    assert len(client.hello.boot_id) == 16
    assert client.hello.kernel_release == os.uname().release
    assert client.call(get_facts=pb.GetFacts()).facts.hostname == "test"
    client.call(configure_zone=pb.ConfigureZone(hostname="pod-1"))
    facts = client.call(get_facts=pb.GetFacts()).facts
    assert (facts.hostname, facts.pid1) == ("pod-1", "init")
    assert facts.kernel_release == os.uname().release
    assert facts.cgroup in ("v1", "v2") and facts.cpus >= 1 and facts.uptime_ns > 0


def test_an_idle_agent_has_at_most_two_mebibytes(client: Client, root: Path) -> None:
    if root.parent.name == "sanitized":
        pytest.skip("the sanitizers' own memory is not the agent's")
    assert client.call(get_stats=pb.GetStats()).stats.zone.agent_rss_bytes <= 2 << 20


def test_a_zone_powers_off(zone: Zone, client: Client) -> None:
    client.call(power_off=pb.PowerOff())
    assert zone.wait_status() == "poweroff"
    assert not Path(f"/proc/{zone.pid}").exists()


def test_the_power_goes_off_after_the_answer(zone: Zone) -> None:
    """The answer is sent behind queued output and answers, to a reader that takes little at a time."""
    client = zone.connect()
    number = client.start("c1", "yes").stdout_stream
    client.close()
    client = zone.connect()
    for connection in zone.sockets():
        listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if connection.family is socket.AF_UNIX and not listens:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    calls = [pb.Request(get_facts=pb.GetFacts())] * 8 + [pb.Request(power_off=pb.PowerOff())]
    sent = [Frame(Type.CALL, n, call.SerializeToString()) for n, call in enumerate(calls, start=1)]
    consumed = frames.credit(number, 0, frames.WINDOW)
    client.socket.sendall(b"".join(map(frames.encode, [consumed, *sent])))
    client.until(lambda: set(client.replies) == {frame.stream for frame in sent}, "all answers")
    assert zone.wait_status() == "poweroff"


def test_a_busy_zone_powers_off(zone: Zone, client: Client) -> None:
    """Running containers, a container waiting for its disk, streams without a reader: nothing leaks."""
    for name in ("c1", "c2"):
        client.call(create_container=creation(name, "yes", stdin=True))
        client.call(start_container=pb.StartContainer(id=name))
    client.call(create_container=creation("c3", "sh", tty=True, stdin=True))
    client.begin(create_container=creation("c4", "true", disk="xvdx"))
    client.begin(configure_network=pb.ConfigureNetwork(index=3))
    with pytest.raises(Failed):
        client.call(create_container=creation("c5", "/no"))
    client.call(delete_container=pb.DeleteContainer(id="c2"))
    client.call(power_off=pb.PowerOff())
    assert zone.wait_status() == "poweroff"
    console = zone.console()
    assert "memory was lost" not in console, console


def test_a_signal_powers_off(zone: Zone) -> None:
    os.kill(zone.pid, signal.SIGTERM)
    assert zone.wait_status() == "poweroff"


def test_a_kill_is_told(zone: Zone) -> None:
    os.kill(zone.pid, signal.SIGKILL)
    assert zone.wait_status() == "killed"


def _launch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BUILD / "fakedom"), *arguments], capture_output=True, text=True, timeout=DEADLINE
    )


@pytest.mark.parametrize("missing", ["root", "init", "cgroup", "memory"])
def test_a_failed_launch_leaves_nothing(tmp_path: Path, parts: Path, missing: str) -> None:
    directory = tmp_path / "zone"
    directory.mkdir()
    root = tmp_path if missing == "init" else parts / "root"
    arguments = ["--root", str(root), "--dir", str(directory)]
    if missing == "root":
        arguments[1] = str(tmp_path / "none")
    if missing == "cgroup":
        arguments += ["--cgroup", str(tmp_path / "none")]
    if missing == "memory":
        arguments += ["--memory", "-1"]
    done = _launch(*arguments)
    assert done.returncode != 0 and done.stderr.startswith("fakedom: ")
    assert not (directory / "pid").exists()
    running = subprocess.run(["pgrep", "-f", str(directory)], capture_output=True, text=True)
    assert running.stdout == ""


def test_wrong_options_are_refused(tmp_path: Path, parts: Path) -> None:
    assert _launch().returncode != 0
    assert _launch("--root", str(tmp_path), "--dir", str(tmp_path), "--env", "novalue").returncode != 0


def test_the_console_is_bounded(zone: Zone) -> None:
    console = os.open(f"/proc/{zone.pid}/fd/2", os.O_WRONLY)
    with os.fdopen(console, "wb", buffering=0) as pipe:
        for number in range(8000):
            pipe.write(b"%06d %s\n" % (number, b"x" * 92))
    client = zone.connect()
    client.call(power_off=pb.PowerOff())
    zone.wait_status()
    text = zone.console()
    assert len(text) <= 256 * 1024
    assert "007999 " in text and "000000 " not in text and "power off" in text
