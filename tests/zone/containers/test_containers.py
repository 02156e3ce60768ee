"""Containers: their whole life, their streams, their end."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from protect.channel import frames
from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import DEADLINE, Client, Failed
from tests.support.agent.zone_specs import creation
from tests.support.waiting import block_until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root


def test_a_container_passes_all_states_of_its_life(zone: Zone, client: Client) -> None:
    created = client.call(
        create_container=creation("c1", "sh", "-c", "echo out; echo err >&2; cat /etc/resolv.conf; exit 7")
    ).created
    assert created.stdin_stream == 0 and created.stdout_stream and created.stderr_stream
    assert client.listed()["c1", ""].state == pb.PROCESS_STATE_CREATED
    assert client.listed()["c1", ""].created == created
    before = time.time_ns()
    client.call(start_container=pb.StartContainer(id="c1"))
    exited = client.exited("c1")
    assert (exited.exit_code, exited.oom_killed) == (7, False)
    assert before < exited.exited_at_ns < time.time_ns()
    assert client.output(created.stdout_stream) == b"out\nnameserver 192.0.2.53\n"
    assert client.output(created.stderr_stream) == b"err\n"
    process = client.listed()["c1", ""]
    assert process.state == pb.PROCESS_STATE_EXITED and process.exited == exited
    assert before < process.started_at_ns <= exited.exited_at_ns
    client.delete("c1")
    assert client.listed() == {}
    inside = Path(f"/proc/{zone.pid}/root")
    assert os.listdir(inside / "run/xenpod/containers") == []
    assert os.listdir(inside / "run/crun") == []
    assert "xenpod/containers" not in Path(f"/proc/{zone.pid}/mounts").read_text()


def test_many_containers_at_once_each_end_with_their_output(client: Client) -> None:
    names = [f"c{n}" for n in range(12)]
    calls = [client.begin(create_container=creation(n, "sh", "-c", f"echo {n}; exit 3")) for n in names]
    streams = {
        name: client.finish(call).created.stdout_stream for name, call in zip(names, calls, strict=True)
    }
    for call in [client.begin(start_container=pb.StartContainer(id=n)) for n in names]:
        client.finish(call)
    assert [client.exited(n).exit_code for n in names] == [3] * len(names)
    assert [client.output(streams[n]) for n in names] == [f"{n}\n".encode() for n in names]
    for call in [client.begin(delete_container=pb.DeleteContainer(id=n)) for n in names]:
        client.finish(call)
    assert client.listed() == {}


def test_the_disk_may_come_later(zone: Zone, client: Client, disk: Path) -> None:
    call = client.begin(create_container=creation("c1", "true", disk="xvdb"))
    client.call(get_facts=pb.GetFacts())
    assert call not in client.replies
    zone.attach("xvdb", disk)
    assert client.finish(call).created.pid > 1


def test_the_disk_may_come_where_no_inotify_is_left(zone: Zone, client: Client, disk: Path) -> None:
    """Zones of the fake share the host's limit of instances: more than 128 must run all the same."""
    limit = Path("/proc/sys/fs/inotify/max_user_instances")
    before = limit.read_text()
    limit.write_text("0")
    try:
        call = client.begin(create_container=creation("c1", "true", disk="xvdb"))
        client.call(get_facts=pb.GetFacts())
        assert call not in client.replies
        zone.attach("xvdb", disk)
        assert client.finish(call).created.pid > 1
    finally:
        limit.write_text(before)


def test_an_idle_zone_holds_no_inotify(zone: Zone, client: Client, disk: Path) -> None:
    call = client.begin(create_container=creation("c1", "true", disk="xvdb"))
    client.call(get_facts=pb.GetFacts())
    zone.attach("xvdb", disk)
    client.finish(call)
    descriptors = Path(f"/proc/{zone.pid}/fd")
    deadline = time.monotonic() + DEADLINE

    def kinds() -> Iterator[str]:
        for one in descriptors.iterdir():
            with suppress(FileNotFoundError):  # closed just before
                yield os.readlink(one)

    while any("inotify" in kind for kind in kinds()):
        assert time.monotonic() < deadline
        client.call(get_facts=pb.GetFacts())


def test_a_node_before_its_disk_is_awaited(zone: Zone, client: Client, disk: Path) -> None:
    """As the kernel does with an attached disk; nothing is behind the first number."""
    devices = Path(f"/proc/{zone.pid}/root/dev")
    os.mknod(devices / "xvdc", 0o600 | 0o060000, os.makedev(240, 0))
    with pytest.raises(OSError, match="No such device"):
        (devices / "xvdc").open("rb")
    call = client.begin(create_container=creation("c1", "true", disk="xvdc"))
    client.call(get_facts=pb.GetFacts())
    assert call not in client.replies
    zone.attach("live", disk)
    (devices / "live").rename(devices / "xvdc")
    assert client.finish(call).created.pid > 1


def test_a_waiting_creation_can_be_deleted(client: Client) -> None:
    call = client.begin(create_container=creation("c1", "true", disk="xvdq"))
    client.delete("c1")
    with pytest.raises(Failed, match="being deleted"):
        client.finish(call)
    assert client.listed() == {}


@pytest.mark.slow
def test_a_missing_disk_fails_the_creation(client: Client) -> None:
    with pytest.raises(Failed, match="xvdz: it did not appear") as failed:
        client.call(create_container=creation("c1", "true", disk="xvdz"))
    assert failed.value.code == 4


def test_container_with_an_invalid_command_mount_or_limit_is_refused(client: Client) -> None:
    """No failure of the zone: FAILED_PRECONDITION, marked as an error of the start."""
    mount = {"destination": "/etc/resolv.conf/x", "type": "tmpfs", "source": "tmpfs"}
    nowhere = creation("c", "true")
    nowhere.config_json = nowhere.config_json.replace(b'"cwd": "/"', b'"cwd": "/etc/resolv.conf"')
    for request, words in (
        (creation("c", "/etc"), "open executable"),
        (creation("c", "/etc/resolv.conf"), "Permission denied"),
        (creation("c", "true", mounts=[mount]), "Not a directory"),
        (creation("c", "true", memory=1), "memory limit|writing file"),
        (nowhere, "chdir"),
    ):
        with pytest.raises(Failed, match=words) as failed:
            client.call(create_container=request)
        assert failed.value.code == 9 and failed.value.cannot_start, words
    assert client.listed() == {}


@pytest.mark.parametrize(("content", "words"), [(b"#!/no/such\n", b"No such file"), (b"x", b"format error")])
def test_file_refused_only_by_the_kernel_starts_and_exits_with_1(
    client: Client, content: bytes, words: bytes
) -> None:
    """The file may be run, as far as can be seen beforehand: its process ends by itself, and says why."""
    mount = {"destination": "/x", "type": "bind", "source": "files/x", "options": ["bind", "ro"]}
    request = creation("c1", "/x", mounts=[mount])
    request.files.append(pb.File(name="x", mode=0o755, content=content))
    created = client.call(create_container=request).created
    client.call(start_container=pb.StartContainer(id="c1"))
    assert client.exited("c1").exit_code == 1
    assert words in client.output(created.stderr_stream)


def test_failed_creation_leaves_nothing(zone: Zone, client: Client) -> None:
    with pytest.raises(Failed, match="not found in") as failed:
        client.call(create_container=creation("c1", "/no/such/program"))
    assert failed.value.code == 9 and failed.value.cannot_start
    broken = creation("c2", "true")
    broken.config_json = b"{"
    with pytest.raises(Failed, match="crun create"):
        client.call(create_container=broken)
    wrong_type = creation("c3", "true")
    wrong_type.rootfs[0].type = "erofs"
    with pytest.raises(Failed, match="mount") as failed:
        client.call(create_container=wrong_type)
    assert not failed.value.cannot_start
    assert client.listed() == {}
    inside = Path(f"/proc/{zone.pid}/root")
    assert os.listdir(inside / "run/xenpod/containers") == []
    assert os.listdir(inside / "run/crun") == []
    assert "xenpod/containers" not in Path(f"/proc/{zone.pid}/mounts").read_text()
    assert client.call(create_container=creation("c1", "true")).created.pid > 1


def test_signals_reach_running_processes(client: Client) -> None:
    client.start("c1", "sleep", "100")
    ref = pb.ProcessRef(container_id="c1")
    client.call(signal_process=pb.SignalProcess(process=ref, signal=signal.SIGKILL))
    assert client.exited("c1").exit_code == 137
    # An ended process can be signalled without an error, as with kill(2) on a zombie.
    client.call(signal_process=pb.SignalProcess(process=ref, signal=signal.SIGTERM))


def test_a_signal_before_the_start_ends_the_container(client: Client) -> None:
    client.call(create_container=creation("c1", "sleep", "100"))
    ref = pb.ProcessRef(container_id="c1")
    client.call(signal_process=pb.SignalProcess(process=ref, signal=signal.SIGKILL))
    assert client.exited("c1").exit_code == 137
    with pytest.raises(Failed):
        client.call(start_container=pb.StartContainer(id="c1"))
    client.delete("c1")


def test_a_signal_for_all_reaches_every_process(client: Client) -> None:
    created = client.start("c1", "sh", "-c", "trap 'echo got; exit 4' TERM; sleep 100 & echo up; wait; wait")
    client.until(lambda: client.streams.get(created.stdout_stream) is not None, "output")
    all_of_it = pb.SignalProcess(process=pb.ProcessRef(container_id="c1"), signal=signal.SIGTERM, all=True)
    client.call(signal_process=all_of_it)
    assert client.exited("c1").exit_code == 4
    assert client.output(created.stdout_stream) == b"up\ngot\n"


def test_out_of_memory_of_an_exec_is_reported(client: Client) -> None:
    client.start("c1", "sleep", "100", memory=24 << 20)
    client.execute("c1", "hog", "tail", "/dev/zero")
    exited = client.exited("c1", "hog")
    assert exited.oom_killed and exited.exit_code == 137


def test_out_of_memory_of_another_process_is_not_the_containers(client: Client) -> None:
    """The death of an exec's child does not count for the exec, nor for a container killed later."""
    client.start("c1", "sleep", "100", memory=24 << 20)
    client.execute("c1", "e1", "sh", "-c", "tail /dev/zero; exit 7")
    exited = client.exited("c1", "e1")
    assert (exited.exit_code, exited.oom_killed) == (7, False)
    client.execute("c1", "e2", "sleep", "100")
    ref = pb.ProcessRef(container_id="c1", exec_id="e2")
    client.call(signal_process=pb.SignalProcess(process=ref, signal=signal.SIGKILL))
    exited = client.exited("c1", "e2")
    assert (exited.exit_code, exited.oom_killed) == (137, False)


def test_stdin_and_its_end(client: Client) -> None:
    created = client.start("c1", "sha256sum", stdin=True)
    data = os.urandom(300_000)
    client.write(created.stdin_stream, data, fin=True)
    assert client.output(created.stdout_stream).split()[0].decode() == hashlib.sha256(data).hexdigest()
    client.until(lambda: client.credits[created.stdin_stream][2], "end of stdin")
    assert client.credits[created.stdin_stream][0] == len(data)


def test_unread_stdin_does_not_delay_the_agent(client: Client) -> None:
    created = client.start("c1", "sh", "-c", "exec <&-; sleep 100", stdin=True)
    client.write(created.stdin_stream, b"x" * 1000)
    client.until(lambda: client.credits[created.stdin_stream][2], "the stream given up")


def test_output_before_the_exit_is_not_lost(client: Client) -> None:
    """The pipe is full when the process ends; and a group member that lives on gets no say."""
    created = client.start("c1", "sh", "-c", "seq 1 20000; sleep 100 & exit 0")
    assert client.exited("c1").exit_code == 0
    expected = "".join(f"{n}\n" for n in range(1, 20001)).encode()
    assert client.output(created.stdout_stream) == expected


def test_writers_end_with_the_container(client: Client) -> None:
    """Without its own pid namespace: processes left behind by the first process are killed."""
    created = client.start(
        "c1", "sh", "-c", "(while :; do echo tick; sleep 0.01; done) & exit 0", shared_pids=True
    )
    client.exited("c1")
    client.output(created.stdout_stream)
    client.delete("c1")


def test_nothing_outlives_the_first_process(zone: Zone, client: Client, cgroups: list[Path]) -> None:
    """Without its own pid namespace: also processes with another session and closed streams."""
    script = "(busybox setsid sleep 1000 <&- >&- 2>&- &); echo up; read -r go"
    created = client.start("c1", "sh", "-c", script, stdin=True, shared_pids=True)
    client.until(lambda: created.stdout_stream in client.streams, "output")
    block_until(lambda: "sleep 1000" in zone.children(), DEADLINE, zone.children)
    client.write(created.stdin_stream, b"\n")
    assert client.exited("c1").exit_code == 0
    block_until(lambda: not zone.children(), DEADLINE, zone.children)
    # The container may have been frozen for the kill, but not for good.
    states = [group / "workloads/c1/freezer.state" for group in cgroups]
    assert {state.read_text() for state in states if state.exists()} <= {"THAWED\n"}


def test_a_running_container_is_deleted(client: Client) -> None:
    created = client.start("c1", "sh", "-c", "trap '' TERM; sleep 100 & wait")
    client.execute("c1", "e1", "sleep", "100")
    calls = [client.begin(delete_container=pb.DeleteContainer(id="c1")) for _ in range(3)]
    for call in calls:
        client.finish(call)
    assert client.listed() == {}
    # The streams are forgotten: credit for them is no violation.
    client.send(frames.credit(created.stdout_stream, 0, 65536))
    client.call(get_facts=pb.GetFacts())


def test_deleting_a_missing_container_is_not_found(client: Client) -> None:
    client.delete("never-was")
    client.call(delete_exec=pb.DeleteExec(process=pb.ProcessRef(container_id="never", exec_id="was")))


def test_orphans_are_reaped(zone: Zone, client: Client) -> None:
    client.start("c1", "sh", "-c", "(sleep 0.1 &) ; exec sleep 100", shared_pids=True)
    call = client.execute("c1", "e1", "sh", "-c", "for n in 1 2 3 4 5; do (sleep 0.0$n &) ; done")
    client.output(call.stdout_stream)
    client.exited("c1", "e1")
    block_until(lambda: zone.children() == ["sleep 100"], DEADLINE, zone.children)


def test_the_root_looks_like_the_image(client: Client) -> None:
    created = client.start(
        "c1", "sh", "-c", "ls -ld / | cut -c1-10 2>/dev/null || ls -ld /; echo x > /new && cat /new"
    )
    text = client.output(created.stdout_stream).decode()
    assert text.endswith("x\n")
    assert "drwxr-x--x" in text or "drwxr-x--x" in client.output(created.stderr_stream).decode()


def test_statistics_of_a_container_are_counted(client: Client) -> None:
    client.start("c1", "sh", "-c", "head -c 3000000 /dev/zero > /tmp/file; echo ready; exec sleep 100")
    client.until(lambda: any(s.data for s in client.streams.values()), "ready")
    stats = client.call(get_stats=pb.GetStats(container_ids=["c1"])).stats
    (one,) = stats.containers
    assert one.id == "c1" and one.cpu_usage_ns > 0 and one.pids_current >= 1
    assert 3_000_000 <= one.writable_layer_bytes < 4_000_000 and one.writable_layer_inodes >= 4
    assert one.memory_usage_bytes >= one.memory_working_set_bytes > 0
    assert one.memory_limit_bytes == 0
    assert stats.zone.memory_total_bytes > stats.zone.memory_available_bytes > 0
    assert len(client.call(get_stats=pb.GetStats()).stats.containers) == 1
    with pytest.raises(Failed) as failed:
        client.call(get_stats=pb.GetStats(container_ids=["c2"]))
    assert failed.value.code == 5
