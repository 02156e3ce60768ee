"""Requests that no agent should carry out: bounds on every field of a request."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import Client, Failed
from tests.support.agent.zone_specs import creation, process_json
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

INVALID, MISSING, EXISTS, EXHAUSTED = 3, 5, 6, 8
BAD_IDS = ["", "../x", "a/b", "A", "a" * 65, "a b", "a\n", "ä", ".", "x\u0000y"]


def refused(client: Client, **op: object) -> int:
    with pytest.raises(Failed) as failed:
        client.call(**op)
    assert failed.value.message.isascii() and len(failed.value.message) <= 4096
    return failed.value.code


@pytest.mark.parametrize("name", BAD_IDS[:-1])
def test_invalid_ids_are_refused(zone: Zone, client: Client, name: str) -> None:
    ref = pb.ProcessRef(container_id=name)
    assert refused(client, create_container=creation(name, "true")) == INVALID
    assert refused(client, start_container=pb.StartContainer(id=name)) in (INVALID, MISSING)
    assert refused(client, delete_container=pb.DeleteContainer(id=name)) == INVALID
    assert refused(client, signal_process=pb.SignalProcess(process=ref, signal=9)) == INVALID
    assert refused(client, resize_terminal=pb.ResizeTerminal(process=ref)) == INVALID
    assert refused(client, exec_process=pb.ExecProcess(process=ref, process_json=b"{}")) == INVALID
    assert refused(client, delete_exec=pb.DeleteExec(process=ref)) == INVALID
    assert os.listdir(f"/proc/{zone.pid}/root/run/xenpod/containers") == []


def test_a_request_without_a_process_is_refused(client: Client) -> None:
    assert refused(client, signal_process=pb.SignalProcess(signal=9)) == INVALID
    assert refused(client, exec_process=pb.ExecProcess(process_json=b"{}")) == INVALID
    assert refused(client, delete_exec=pb.DeleteExec()) == INVALID


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "x" * 65, "a b"])
def test_file_with_an_invalid_name_is_refused(client: Client, name: str) -> None:
    request = creation("c1", "true")
    request.files.add(name=name, mode=0o600, content=b"x")
    assert refused(client, create_container=request) == INVALID


def test_other_bounds_of_a_creation(client: Client) -> None:
    request = creation("c1", "true")
    request.config_json = b""
    assert refused(client, create_container=request) == INVALID
    request = creation("c1", "true")
    request.files[0].mode = 0o100644
    assert refused(client, create_container=request) == INVALID
    request = creation("c1", "true")
    for number in range(64):
        request.files.add(name=f"f{number}", mode=0o600)
    assert refused(client, create_container=request) == INVALID
    request.files.pop()
    assert client.call(create_container=request).created.pid > 1


def test_creation_of_an_existing_container_or_exec_is_refused(client: Client) -> None:
    client.call(create_container=creation("c1", "sleep", "100"))
    assert refused(client, create_container=creation("c1", "true")) == EXISTS
    process = json.dumps(process_json("sleep", "100")).encode()
    request = pb.ExecProcess(process=pb.ProcessRef(container_id="c1", exec_id="e"), process_json=process)
    assert refused(client, exec_process=request) == 9
    client.call(start_container=pb.StartContainer(id="c1"))
    assert refused(client, start_container=pb.StartContainer(id="c1")) == 9
    client.call(exec_process=request)
    assert refused(client, exec_process=request) == EXISTS
    request.process.container_id = "c2"
    assert refused(client, exec_process=request) == MISSING


@pytest.mark.parametrize("number", [0, 65, 1000, 2**32 - 1])
def test_invalid_signal_numbers_are_refused(client: Client, number: int) -> None:
    client.call(create_container=creation("c1", "true"))
    ref = pb.ProcessRef(container_id="c1")
    assert refused(client, signal_process=pb.SignalProcess(process=ref, signal=number)) == INVALID


def test_a_container_beyond_sixty_four_is_refused(client: Client) -> None:
    # Creations that wait for a disk count, and cost nothing.
    calls = [client.begin(create_container=creation(f"c{n}", "true", disk="xvdx")) for n in range(63)]
    client.call(create_container=creation("last", "true"))
    assert refused(client, create_container=creation("more", "true")) == EXHAUSTED
    for number, call in enumerate(calls):
        client.call(delete_container=pb.DeleteContainer(id=f"c{number}"))
        with pytest.raises(Failed):
            client.finish(call)
    client.call(create_container=creation("more", "true"))


def test_failed_execs_are_not_counted(zone: Zone, client: Client) -> None:
    """More failing execs than the limit allows at a time."""
    client.start("c1", "sleep", "100")
    # In the way of the file for crun.
    Path(f"/proc/{zone.pid}/root/run/xenpod/containers/c1/exec-e1.json").mkdir()
    process = json.dumps(process_json("true")).encode()
    request = pb.ExecProcess(process=pb.ProcessRef(container_id="c1", exec_id="e1"), process_json=process)
    for _ in range(260):
        assert refused(client, exec_process=request) == 13
    assert client.execute("c1", "e2", "true").pid > 1


@pytest.mark.parametrize("size", [{"rows": 65536, "columns": 80}, {"rows": 24, "columns": 65536}])
def test_invalid_sizes_of_a_terminal_are_refused(client: Client, size: dict[str, int]) -> None:
    client.call(create_container=creation("c1", "true", tty=True))
    ref = pb.ProcessRef(container_id="c1")
    client.call(resize_terminal=pb.ResizeTerminal(process=ref, rows=65535, columns=65535))
    assert refused(client, resize_terminal=pb.ResizeTerminal(process=ref, **size)) == INVALID


def test_invalid_sysctls_are_refused(zone: Zone, client: Client) -> None:
    good = {"net.ipv4.ip_unprivileged_port_start": "80", "net/ipv4/conf/lo/forwarding": "1"}
    client.call(configure_zone=pb.ConfigureZone(sysctls=good))
    for bad in ("", "..", "net..ipv4", "../../tmp/x", "/net", "net/../x", "a" * 300, "net. x"):
        assert refused(client, configure_zone=pb.ConfigureZone(sysctls={bad: "1"})) == INVALID
    assert refused(client, configure_zone=pb.ConfigureZone(sysctls={"net.no.such": "1"})) == 9
    for value in ("maybe", "9" * 40):
        wrong = {"net.ipv4.ip_unprivileged_port_start": value}
        assert refused(client, configure_zone=pb.ConfigureZone(sysctls=wrong)) == INVALID
    assert refused(client, configure_zone=pb.ConfigureZone(hostname="a/b")) == INVALID
    assert refused(client, configure_zone=pb.ConfigureZone(hostname="x" * 65)) == INVALID


def test_the_largest_request_is_accepted(client: Client) -> None:
    request = creation("c1", "cat", "/etc/resolv.conf")
    request.files[0].content = b"#" * ((1 << 20) - 4096)
    created = client.call(create_container=request).created
    client.call(start_container=pb.StartContainer(id="c1"))
    assert client.output(created.stdout_stream) == request.files[0].content


def test_descriptors_do_not_leak(zone: Zone, client: Client) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{zone.pid}/fd"))

    def life(name: str) -> None:
        created = client.call(
            create_container=creation(name, "sh", "-c", "echo x", tty=name == "tty")
        ).created
        client.call(start_container=pb.StartContainer(id=name))
        client.exited(name)
        client.output(created.stdout_stream)
        with pytest.raises(Failed):
            client.call(create_container=creation("bad", "/no"))
        client.call(delete_container=pb.DeleteContainer(id=name))

    life("first")
    before = descriptors()
    for name in ("a", "b", "tty", "c"):
        life(name)
    assert descriptors() == before
    assert Path(f"/proc/{zone.pid}/mounts").read_text().count("overlay") == 0
