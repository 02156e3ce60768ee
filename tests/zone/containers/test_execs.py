"""Execs in a container, and terminals."""

from __future__ import annotations

import json

import pytest

from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import DEADLINE, Client, Failed
from tests.support.agent.zone_specs import process_json
from tests.support.waiting import block_until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root


def test_an_exec_has_output_and_an_exit_code(client: Client) -> None:
    client.start("c1", "sleep", "100")
    created = client.execute("c1", "e1", "sh", "-c", "cat; echo done >&2; exit 5", stdin=True)
    client.write(created.stdin_stream, b"hello", fin=True)
    assert client.exited("c1", "e1").exit_code == 5
    assert client.output(created.stdout_stream) == b"hello"
    assert client.output(created.stderr_stream) == b"done\n"
    assert client.listed()["c1", "e1"].state == pb.PROCESS_STATE_EXITED
    client.call(delete_exec=pb.DeleteExec(process=pb.ProcessRef(container_id="c1", exec_id="e1")))
    assert ("c1", "e1") not in client.listed()


def test_many_short_execs_end_with_their_codes(client: Client) -> None:
    """Some end before crun has written their pid."""
    client.start("c1", "sleep", "100")
    for round_ in range(5):
        calls = []
        for n in range(6):
            request = pb.ExecProcess(
                process=pb.ProcessRef(container_id="c1", exec_id=f"e{round_}-{n}"),
                process_json=json.dumps(process_json("sh", "-c", f"exit {n}")).encode(),
            )
            calls.append(client.begin(exec_process=request))
        for call in calls:
            client.finish(call)
        assert [client.exited("c1", f"e{round_}-{n}").exit_code for n in range(6)] == list(range(6))


def test_an_exec_of_a_missing_program_is_refused(client: Client) -> None:
    client.start("c1", "sleep", "100")
    with pytest.raises(Failed, match="crun exec"):
        client.execute("c1", "e1", "/no/such/program")
    assert ("c1", "e1") not in client.listed()
    assert client.execute("c1", "e1", "true").pid > 1


def test_an_exec_leaves_a_writer(client: Client) -> None:
    """The streams end with the last writer; deleting the exec does not wait for the writer."""
    client.start("c1", "sleep", "100")
    created = client.execute("c1", "e1", "sh", "-c", "(sleep 0.3; echo late) & echo early")
    assert client.exited("c1", "e1").exit_code == 0
    assert client.output(created.stdout_stream) == b"early\nlate\n"
    client.execute("c1", "e2", "sh", "-c", "sleep 50 & exit 1")
    assert client.exited("c1", "e2").exit_code == 1
    client.call(delete_exec=pb.DeleteExec(process=pb.ProcessRef(container_id="c1", exec_id="e2")))


@pytest.mark.parametrize("lines", [0, 2000])
def test_a_terminal_left_with_a_background_job_ends_with_its_shell(client: Client, lines: int) -> None:
    """All output before the shell's end arrives, and the job lives on."""
    client.start("c1", "sleep", "100", shared_pids=True)
    script = f"trap '' HUP; sleep 50 & for n in $(seq {lines}); do echo $n; done; echo $!"
    created = client.execute("c1", "e1", "sh", "-c", script, tty=True)
    assert client.exited("c1", "e1").exit_code == 0
    *shown, job = client.output(created.stdout_stream).decode().split()
    assert shown == [str(n + 1) for n in range(lines)]
    alive = client.execute("c1", "e2", "kill", "-0", job)
    assert client.exited("c1", "e2").exit_code == 0, client.output(alive.stderr_stream)


def test_a_running_exec_is_deleted(client: Client) -> None:
    client.start("c1", "sleep", "100")
    client.execute("c1", "e1", "sleep", "100")
    client.call(delete_exec=pb.DeleteExec(process=pb.ProcessRef(container_id="c1", exec_id="e1")))
    assert ("c1", "e1") not in client.listed()
    assert client.listed()["c1", ""].state == pb.PROCESS_STATE_RUNNING


def test_a_deleted_exec_ends_with_its_group(zone: Zone, client: Client) -> None:
    """An exec that leads a group, as the first process of a terminal does."""
    client.start("c1", "sleep", "100", shared_pids=True)
    created = client.execute("c1", "e1", "sh", "-c", "trap '' HUP; sleep 1000 & echo up; wait", tty=True)
    client.until(lambda: created.stdout_stream in client.streams, "output")
    client.call(delete_exec=pb.DeleteExec(process=pb.ProcessRef(container_id="c1", exec_id="e1")))
    block_until(lambda: zone.children() == ["sleep 100"], DEADLINE, zone.children)


def test_a_terminal_has_its_size(client: Client) -> None:
    created = client.start("c1", "sh", tty=True, stdin=True)
    assert created.stderr_stream == 0
    ref = pb.ProcessRef(container_id="c1")
    client.call(resize_terminal=pb.ResizeTerminal(process=ref, rows=33, columns=77))
    client.write(created.stdin_stream, b"stty size; exit 6\n")
    assert client.exited("c1").exit_code == 6
    assert b"33 77\r\n" in client.output(created.stdout_stream)


def test_an_exec_can_have_a_terminal(client: Client) -> None:
    client.start("c1", "sleep", "100")
    created = client.execute("c1", "e1", "sh", "-c", "test -t 0 && cat && echo over", tty=True, stdin=True)
    client.write(created.stdin_stream, b"line\n", fin=True)
    assert client.exited("c1", "e1").exit_code == 0
    assert client.output(created.stdout_stream).endswith(b"line\r\nover\r\n")


def test_a_resize_without_a_terminal_is_refused(client: Client) -> None:
    client.start("c1", "sleep", "100")
    resize = pb.ResizeTerminal(process=pb.ProcessRef(container_id="c1"), rows=1, columns=1)
    with pytest.raises(Failed) as failed:
        client.call(resize_terminal=resize)
    assert failed.value.code == 9
