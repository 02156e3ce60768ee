"""Creations answered while crun is still at work: later calls wait for crun, and get its result."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import Client, Failed
from tests.support.agent.zone_specs import creation
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root


def early(name: str, *args: str, **options: Any) -> pb.CreateContainer:
    request = creation(name, *args, **options)
    request.answer_early = True
    return request


def start(name: str) -> pb.StartContainer:
    return pb.StartContainer(id=name)


def test_the_answer_comes_before_the_pid_and_the_start_has_the_pid(client: Client) -> None:
    created = client.call(create_container=early("c1", "sh", "-c", "echo out; echo err >&2; exit 3")).created
    assert created.stdout_stream and created.stderr_stream and created.pid == 0
    pid = client.call(start_container=start("c1")).pid
    assert pid > 1
    assert client.exited("c1").exit_code == 3
    assert client.output(created.stdout_stream) == b"out\n"
    assert client.output(created.stderr_stream) == b"err\n"
    assert client.listed()[("c1", "")].created.pid == pid


def test_calls_sent_at_once_are_held_and_done_in_their_order(client: Client) -> None:
    resources = json.dumps({"cpu": {"shares": 512}}).encode()
    calls = [
        client.begin(create_container=early("c1", "sleep", "1000")),
        client.begin(update_container=pb.UpdateContainer(id="c1", resources_json=resources)),
        client.begin(start_container=start("c1")),
        client.begin(start_container=start("c1")),
    ]
    client.finish(calls[0])
    client.finish(calls[1])
    client.finish(calls[2])
    with pytest.raises(Failed, match="started before"):
        client.finish(calls[3])
    client.call(
        signal_process=pb.SignalProcess(
            process=pb.ProcessRef(container_id="c1"), signal=signal.SIGKILL, all=True
        )
    )
    assert client.exited("c1").exit_code == 128 + 9


def test_a_signal_reaches_an_unfinished_container(client: Client) -> None:
    creating = client.begin(create_container=early("c1", "sleep", "1000"))
    kill = pb.SignalProcess(process=pb.ProcessRef(container_id="c1"), signal=signal.SIGKILL)
    killing = client.begin(signal_process=kill)
    client.finish(creating)
    client.finish(killing)
    assert client.exited("c1").exit_code == 128 + 9
    with pytest.raises(Failed, match="started before, or has ended"):
        client.call(start_container=start("c1"))


def test_an_impossible_command_is_refused_at_start(zone: Zone, client: Client) -> None:
    request = early("c1", "/no/such/program", stdin=True)
    created = client.call(create_container=request).created
    for _ in range(2):
        with pytest.raises(Failed, match="not found in") as failed:
            client.call(start_container=start("c1"))
        assert failed.value.code == 9 and failed.value.cannot_start
    client.call(update_container=pb.UpdateContainer(id="c1", resources_json=b"{}"))
    assert client.output(created.stdout_stream) == client.output(created.stderr_stream) == b""
    assert client.listed()[("c1", "")].state == pb.PROCESS_STATE_CREATED
    client.delete("c1")
    _nothing_is_left(zone, client)


def test_a_container_can_be_deleted_during_its_creation(zone: Zone, client: Client) -> None:
    creating = client.begin(create_container=early("c1", "sleep", "1000"))
    deleting = client.begin(delete_container=pb.DeleteContainer(id="c1"))
    starting = client.begin(start_container=start("c1"))
    client.finish(creating)
    client.finish(deleting)
    with pytest.raises(Failed):
        client.finish(starting)
    _nothing_is_left(zone, client)


def test_a_new_connection_learns_of_a_complete_container(zone: Zone) -> None:
    first = zone.connect()
    first.call(create_container=early("c1", "sleep", "1000"))
    first.close()
    client = zone.connect()
    found = client.listed()[("c1", "")]
    assert found.state == pb.PROCESS_STATE_CREATED and found.created.pid > 1
    assert client.call(start_container=start("c1")).pid == found.created.pid


@pytest.mark.parametrize("runs", [True, False])
def test_a_held_start_outlives_its_connection(zone: Zone, runs: bool) -> None:
    """The sender learns the result from the list of processes, or from the error of the next start."""
    first = zone.connect()
    creating = first.begin(create_container=early("c1", "sleep" if runs else "/no/such/program", "1000"))
    first.begin(start_container=start("c1"))
    first.call(get_facts=pb.GetFacts())  # calls are read in order: the agent has the start
    first.finish(creating)
    first.close()
    client = zone.connect()
    found = client.listed()[("c1", "")]
    if runs:
        assert found.state == pb.PROCESS_STATE_RUNNING and found.created.pid > 1 and found.started_at_ns
        return
    assert found.state == pb.PROCESS_STATE_CREATED and found.created.pid == 0
    with pytest.raises(Failed, match="not found in") as failed:
        client.call(start_container=start("c1"))
    assert failed.value.cannot_start


def test_a_terminal_is_waited_for(client: Client) -> None:
    created = client.call(create_container=early("c1", "test", "-t", "1", tty=True)).created
    assert created.pid > 1 and created.stderr_stream == 0
    client.call(start_container=start("c1"))
    assert client.exited("c1").exit_code == 0


def _nothing_is_left(zone: Zone, client: Client) -> None:
    assert client.listed() == {}
    inside = Path(f"/proc/{zone.pid}/root")
    assert os.listdir(inside / "run/xenpod/containers") == []
    assert os.listdir(inside / "run/crun") == []


def test_disks_of_an_earlier_connection_are_not_waited_for(zone: Zone) -> None:
    """The caller that would attach the disks has gone."""
    first = zone.connect()
    first.begin(create_container=creation("c1", "true", disk="xvdz"))
    first.call(get_facts=pb.GetFacts())
    first.close()
    client = zone.connect()
    listing = client.begin(list_processes=pb.ListProcesses())
    client.call(get_facts=pb.GetFacts())
    assert listing in client.replies, "it is still waited for"
    assert not client.finish(listing).processes.processes
    _nothing_is_left(zone, client)
