"""The agent's work after crun's success: a later step may fail, a process may have ended.

A script in crun's place holds crun after its work: each case occurs in every run.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import DEADLINE, Client, Failed
from tests.support.agent.zone_specs import creation, process_json
from tests.support.waiting import block_until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

CRUN = """#!/usr/bin/busybox sh
[ -e "/run/fail-$3" ] && exit 1
/usr/bin/crun.real "$@" || exit $?
gate=/run/gate-$3
[ -p "$gate" ] || exit 0
echo done > "$gate"
read -r go < "$gate.go"
"""
PTRACE_SEIZE = 0x4206


class Gate:
    """Holds crun's commands of a kind after their work is done."""

    def __init__(self, zone: Zone, command: str) -> None:
        self.done = Path(f"/proc/{zone.pid}/root/run/gate-{command}")
        self.go = self.done.with_suffix(".go")
        for path in (self.go, self.done):
            os.mkfifo(path)
        # Open for both directions: no side waits for the other.
        self.files = [os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in (self.done, self.go)]

    def wait(self) -> None:
        """Wait until crun has done its work."""
        assert readable(self.files[0]), "crun was not called, or failed"
        os.read(self.files[0], 100)

    def open(self) -> None:
        """Let the command end; later commands are not held."""
        self.done.unlink()
        os.write(self.files[1], b"\n")

    def close(self) -> None:
        for file in self.files:
            os.close(file)


def readable(file: int) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(DEADLINE * 1000))


@pytest.fixture(scope="session")
def gated_root(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zone's tree with the script for crun."""
    tree = tmp_path_factory.mktemp("gated") / "root"
    shutil.copytree(root, tree, symlinks=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, tree / "usr/bin/busybox")
    libraries = subprocess.run(["ldd", busybox], capture_output=True, text=True, check=False).stdout.split()
    for library in (word for word in libraries if word.startswith("/")):
        (tree / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, tree / library.lstrip("/"))
    crun = tree / "usr/bin/crun"
    crun.rename(crun.with_name("crun.real"))
    crun.write_text(CRUN)
    crun.chmod(0o755)
    return tree


@pytest.fixture
def zone(tmp_path: Path, gated_root: Path, cgroups: list[Path], disk: Path) -> Iterator[Zone]:
    directory = tmp_path / "zone"
    directory.mkdir()
    zone = Zone(directory, gated_root, cgroups)
    zone.unpause()
    zone.connect().close()
    zone.attach("xvda", disk)
    yield zone
    zone.destroy()
    console = zone.console()
    assert "ERROR: AddressSanitizer" not in console and "runtime error" not in console, console


@contextmanager
def gate(zone: Zone, command: str) -> Iterator[Gate]:
    made = Gate(zone, command)
    yield made
    made.close()


def children_of(zone: Zone) -> dict[str, int]:
    """The agent's children, by command line: their pids on the host."""
    found = {}
    for pid in Path(f"/proc/{zone.pid}/task/{zone.pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # reaped just before
            found[Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()] = int(pid)
    return found


def children_are(zone: Zone, *expected: str) -> dict[str, int]:
    """Wait until the agent has exactly these children: the host has no event for them."""
    found: dict[str, int] = {}

    def arrived() -> bool:
        nonlocal found
        found = children_of(zone)
        return found.keys() == set(expected)

    block_until(arrived, DEADLINE, lambda: found)
    return found


def held_crun(command: str, *arguments: str) -> str:
    """The command line of the held script."""
    crun = ("/usr/bin/busybox", "sh", "/usr/bin/crun", "--log=/proc/self/fd/3", "--cgroup-manager=cgroupfs")
    return " ".join((*crun, command, *arguments))


def held_exec(container: str, exec_id: str, *more: str) -> str:
    path = f"/run/xenpod/containers/{container}/exec-{exec_id}"
    files = ("--process", f"{path}.json", "--pid-file", f"{path}.pid")
    return held_crun("exec", "--detach", *files, *more, container)


@contextmanager
def terminal_taken(zone: Zone) -> Iterator[None]:
    """We accept and keep crun's terminal in the agent's place."""
    for listener in zone.sockets():
        if str(listener.getsockname()).startswith("/run/xenpod/console/"):
            with listener.accept()[0]:
                yield
            return
    raise AssertionError("no socket for a terminal")


def execution(container: str, exec_id: str, *args: str, tty: bool = False) -> pb.ExecProcess:
    return pb.ExecProcess(
        process=pb.ProcessRef(container_id=container, exec_id=exec_id),
        process_json=json.dumps(process_json(*args, tty=tty)).encode(),
        tty=tty,
    )


@contextmanager
def pid_lost(zone: Zone) -> Iterator[None]:
    """crun's pid file of c1 is gone."""
    Path(f"/proc/{zone.pid}/root/run/xenpod/containers/c1/pid").write_text("")
    yield


@pytest.mark.parametrize(("spoilt", "code"), [(pid_lost, 13), (terminal_taken, 8)])
def test_a_failed_create_after_crun_is_undone(
    zone: Zone, client: Client, spoilt: Callable[[Zone], AbstractContextManager[None]], code: int
) -> None:
    inside = Path(f"/proc/{zone.pid}/root")
    with gate(zone, "create") as held:
        call = client.begin(create_container=creation("c1", "sleep", "100", tty=True, stdin=True))
        held.wait()
        assert os.listdir(inside / "run/crun") == ["c1"]
        with spoilt(zone):
            held.open()
            with pytest.raises(Failed) as failed:
                client.finish(call)
            assert failed.value.code == code
            children_are(zone)
    assert client.listed() == {} and client.events == []
    assert os.listdir(inside / "run/crun") == [] and os.listdir(inside / "run/xenpod/containers") == []
    assert os.listdir(inside / "run/xenpod/console") == []
    assert "xenpod/containers" not in Path(f"/proc/{zone.pid}/mounts").read_text()
    client.start("c1", "sh", "-c", "exit 4", tty=True)
    assert client.exited("c1").exit_code == 4


def test_an_exec_with_an_unreachable_terminal_is_killed(zone: Zone, client: Client) -> None:
    client.start("c1", "sleep", "100")
    with gate(zone, "exec") as held:
        call = client.begin(exec_process=execution("c1", "e1", "sleep", "1000", tty=True))
        held.wait()
        # Kept by us: the terminal's end must not end the process.
        with terminal_taken(zone):
            held.open()
            with pytest.raises(Failed, match="terminal from crun") as failed:
                client.finish(call)
            assert failed.value.code == 8
            children_are(zone, "sleep 100")
    assert set(client.listed()) == {("c1", "")} and client.events == []
    left = os.listdir(f"/proc/{zone.pid}/root/run/xenpod/containers/c1")
    assert not [name for name in left if name.startswith("exec-")]
    client.execute("c1", "e1", "sh", "-c", "exit 6", tty=True)
    assert client.exited("c1", "e1").exit_code == 6


def test_an_exec_ended_before_its_pid_is_known_is_reported(zone: Zone, client: Client) -> None:
    client.start("c1", "sleep", "100")
    with gate(zone, "exec") as held:
        call = client.begin(exec_process=execution("c1", "e1", "sh", "-c", "exit 5"))
        held.wait()
        children_are(zone, "sleep 100", held_exec("c1", "e1"))
        held.open()
        assert client.finish(call).created.pid > 1
    assert client.events == []
    assert client.exited("c1", "e1").exit_code == 5


def test_an_end_is_told_after_the_start(zone: Zone, client: Client) -> None:
    client.call(create_container=creation("c1", "sh", "-c", "exit 3"))
    with gate(zone, "start") as held:
        call = client.begin(start_container=pb.StartContainer(id="c1"))
        held.wait()
        children_are(zone, held_crun("start", "c1"))
        assert client.listed()["c1", ""].state == pb.PROCESS_STATE_CREATED
        held.open()
        client.finish(call)
    assert client.events == []
    assert client.exited("c1").exit_code == 3


def test_a_failed_start_can_be_tried_again(zone: Zone, client: Client) -> None:
    client.call(create_container=creation("c1", "sh", "-c", "exit 3"))
    fails = Path(f"/proc/{zone.pid}/root/run/fail-start")
    fails.touch()
    with pytest.raises(Failed, match="crun start: status 1: it gave no reason"):
        client.call(start_container=pb.StartContainer(id="c1"))
    process = client.listed()["c1", ""]
    assert (process.state, process.started_at_ns) == (pb.PROCESS_STATE_CREATED, 0)
    fails.unlink()
    client.call(start_container=pb.StartContainer(id="c1"))
    assert client.exited("c1").exit_code == 3


def refused(client: Client, code: int, **op: object) -> None:
    with pytest.raises(Failed) as failed:
        client.call(**op)
    assert failed.value.code == code, failed.value


def test_nothing_begins_in_a_container_under_deletion(zone: Zone, client: Client) -> None:
    client.start("c1", "sleep", "100")
    client.call(create_container=creation("c2", "sleep", "100"))
    update = pb.UpdateContainer(id="c2", resources_json=b'{"pids": {"limit": 100}}')
    with gate(zone, "exec") as exec_held, gate(zone, "update") as update_held:
        calls = [
            client.begin(exec_process=execution("c1", "e1", "sleep", "50")),
            client.begin(update_container=update),
        ]
        for held in (exec_held, update_held):
            held.wait()
        calls += [client.begin(delete_container=pb.DeleteContainer(id=name)) for name in ("c1", "c2")]
        refused(client, 9, exec_process=execution("c1", "e2", "true"))
        refused(client, 9, start_container=pb.StartContainer(id="c2"))
        refused(client, 9, update_container=update)
        assert not client.replies
        for held in (exec_held, update_held):
            held.open()
        for call in calls:
            client.finish(call)
    assert client.listed() == {}


def test_a_name_is_taken_from_the_beginning_of_its_exec(zone: Zone, client: Client) -> None:
    client.start("c1", "sleep", "100")
    with gate(zone, "exec") as held:
        call = client.begin(exec_process=execution("c1", "e1", "sleep", "50"))
        held.wait()
        refused(client, 6, exec_process=execution("c1", "e1", "true"))
        # The process does not exist for other callers yet.
        assert set(client.listed()) == {("c1", "")}
        ref = pb.ProcessRef(container_id="c1", exec_id="e1")
        refused(client, 9, signal_process=pb.SignalProcess(process=ref, signal=signal.SIGTERM))
        # The call deletes as soon as the pid is known.
        deletion = client.begin(delete_exec=pb.DeleteExec(process=ref))
        held.open()
        client.finish(call)
        client.finish(deletion)
    children_are(zone, "sleep 100")


@contextmanager
def traced(pid: int) -> Iterator[None]:
    """A process whose end only we know, until the block ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0, os.strerror(ctypes.get_errno())
    yield
    assert os.waitpid(pid, 0)[0] == pid


@pytest.mark.parametrize("exec_id", ["", "e1"])
def test_a_list_waits_for_a_removal_of_a_lost_connection(zone: Zone, exec_id: str) -> None:
    client = zone.connect()
    client.start("c1", "sleep", "100", shared_pids=True)
    client.call(exec_process=execution("c1", "e1", "sleep", "200"))
    children = children_are(zone, "sleep 100", "sleep 200")
    with traced(children["sleep 200" if exec_id else "sleep 100"]):
        if exec_id:
            client.begin(delete_exec=pb.DeleteExec(process=pb.ProcessRef(container_id="c1", exec_id=exec_id)))
        else:
            client.begin(delete_container=pb.DeleteContainer(id="c1"))
        client.call(get_facts=pb.GetFacts())
        client.close()
        client = zone.connect()
        call = client.begin(list_processes=pb.ListProcesses())
        client.call(get_facts=pb.GetFacts())
        assert call not in client.replies
    processes = client.finish(call).processes.processes
    assert [p.process.exec_id for p in processes] == ([""] if exec_id else [])
    client.close()


@pytest.mark.slow
def test_a_deletion_of_an_endless_process_is_given_up(zone: Zone, client: Client) -> None:
    """And can be asked for again."""
    client.start("c1", "sleep", "100", shared_pids=True)
    with traced(children_are(zone, "sleep 100")["sleep 100"]):
        refused(client, 4, delete_container=pb.DeleteContainer(id="c1"))
        assert set(client.listed()) == {("c1", "")}
    client.delete("c1")
    assert client.listed() == {}
