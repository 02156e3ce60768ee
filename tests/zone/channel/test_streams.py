"""Streams over connections that come and go: credit, turns, every byte once."""

from __future__ import annotations

import itertools
import os
import random

import pytest

from protect.channel import frames
from tests.support.agent.zone import Zone
from tests.support.agent.zone_client import DEADLINE, Client, Stream
from tests.support.agent.zone_specs import creation
from tests.support.waiting import block_until
from xenpod_proto.channel.v1 import channel_pb2 as pb

pytestmark = pytest.mark.root

COUNT = (
    "i=0; while [ $i -lt 4000 ]; do echo line $i of the long text that has to come whole and in order;"
    " i=$((i+1)); done"
)
EXPECTED = "".join(
    f"line {n} of the long text that has to come whole and in order\n" for n in range(4000)
).encode()


def test_streams_resume_under_load(zone: Zone) -> None:
    """Connections that break at any point: every byte once, in order."""
    source = random.Random(11)
    client = zone.connect()
    created = client.start("c1", "sh", "-c", COUNT)
    stream = Stream(created.stdout_stream)
    breaks = 0
    while not stream.ended:
        client.streams[stream.number] = stream
        try:
            # A frame has at most a fifteenth of the content: breaks are frequent enough, however late we
            # read.
            for _ in range(source.randrange(1, 3)):
                if stream.ended:
                    break
                client.step()
        finally:
            client.close()
        breaks += 1
        # The last bytes may be unprocessed: the agent requests them again.
        stream.consumed = source.randrange(stream.consumed, len(stream.data) + 1)
        del stream.data[stream.consumed :]
        if stream.ended and stream.consumed < len(EXPECTED):
            stream.ended = False
        client = zone.connect()
        client.send(
            frames.credit(stream.number, stream.consumed, stream.consumed + frames.WINDOW, fin=stream.ended)
        )
    assert bytes(stream.data) == EXPECTED
    assert breaks > 5
    client.call(delete_container=pb.DeleteContainer(id="c1"))


def test_a_stream_is_silent_until_credit(zone: Zone) -> None:
    client = zone.connect()
    created = client.call(create_container=creation("c1", "sh", "-c", "echo one; sleep 100")).created
    # Nothing is consumed: all bytes may be requested again.
    first = client.streams[created.stdout_stream] = Stream(created.stdout_stream, take=False)
    client.call(start_container=pb.StartContainer(id="c1"))
    client.until(lambda: first.data == b"one\n", "output")
    client.close()
    client = zone.connect()
    client.call(get_facts=pb.GetFacts())
    client.call(get_facts=pb.GetFacts())
    assert created.stdout_stream not in client.streams
    # Asked for again from the second byte, and no further than the third.
    stream = client.streams.setdefault(
        created.stdout_stream, Stream(created.stdout_stream, bytearray(b"o"), take=False)
    )
    client.send(frames.credit(stream.number, 1, 3))
    client.until(lambda: len(stream.data) > 1, "output")
    assert stream.data == b"one"


def test_exits_while_nobody_is_connected(zone: Zone) -> None:
    client = zone.connect()
    created = client.start("c1", "sh", "-c", "sleep 0.2; echo bye; exit 9")
    client.close()
    block_until(lambda: not zone.children(), DEADLINE, zone.children)
    client = zone.connect()
    (process,) = client.call(list_processes=pb.ListProcesses()).processes.processes
    assert process.exited.exit_code == 9 and process.created == created
    client.send(frames.credit(created.stdout_stream, 0, frames.WINDOW))
    assert client.output(created.stdout_stream) == b"bye\n"


def test_stdin_goes_on_in_a_new_connection(zone: Zone) -> None:
    client = zone.connect()
    created = client.start("c1", "sh", "-c", "sleep 0.5; cat", stdin=True)
    data = os.urandom(400_000)
    stream = Stream(created.stdout_stream)
    number = created.stdin_stream
    client.streams[stream.number] = stream
    client.send(frames.data(number, 0, data[:60000]))
    client.close()
    client = Client(zone.channel, streams={stream.number: stream})
    client.until(lambda: number in client.credits, "the agent's own CREDIT")
    consumed = client.credits[number][0]
    assert consumed <= 60000
    client.send(frames.credit(stream.number, stream.consumed, stream.consumed + frames.WINDOW))
    client.sent[number] = consumed
    client.write(number, data[consumed:], fin=True)
    assert client.output(stream.number) == data
    client.until(lambda: client.credits[number][2], "end of stdin")
    # Every later connection gets the end too, in case the message was lost.
    client.close()
    client = zone.connect()
    client.until(lambda: client.credits.get(number) == (len(data), len(data), True), "end of stdin, again")


def test_kept_stdin_is_sent_again(zone: Zone) -> None:
    """The bytes beyond the pipe's size belonged to the lost connection."""
    client = zone.connect()
    script = "until [ -e /tmp/go ]; do sleep 0.05; done; cat"
    created = client.start("c1", "sh", "-c", script, stdin=True)
    number = created.stdin_stream
    data = os.urandom(100_000)
    client.write(number, data)
    client.call(get_facts=pb.GetFacts())
    client.close()
    client = zone.connect()
    client.until(lambda: number in client.credits, "the agent's own CREDIT")
    consumed = client.credits[number][0]
    assert 0 < consumed < len(data)
    client.sent[number] = consumed
    client.write(number, data[consumed:], fin=True)
    client.execute("c1", "e1", "touch", "/tmp/go")
    client.send(frames.credit(created.stdout_stream, 0, frames.WINDOW))
    assert client.output(created.stdout_stream) == data


def test_an_unread_stream_stops_its_writer(zone: Zone, client: Client) -> None:
    """Without credit the writer blocks, the agent's memory does not grow, and other streams continue."""
    stuck = client.call(create_container=creation("c1", "yes")).created
    client.streams[stuck.stdout_stream] = Stream(stuck.stdout_stream, take=False)
    client.call(start_container=pb.StartContainer(id="c1"))
    stream = client.streams[stuck.stdout_stream]
    client.until(lambda: len(stream.data) == frames.WINDOW, "a window full")
    created = client.start("c2", "seq", "1", "50000")
    assert len(client.output(created.stdout_stream)) == 288894
    assert len(stream.data) == frames.WINDOW
    client.grant(stream)
    client.until(lambda: len(stream.data) == 2 * frames.WINDOW, "another window")


def test_a_quiet_writer_is_heard_beside_endless_writers(client: Client) -> None:
    """Two endless writers and a quiet third: the agent serves the third writer, and calls too."""
    endless = []
    for name in ("c1", "c2"):
        number = client.start(name, "yes").stdout_stream
        endless.append(client.streams.setdefault(number, Stream(number)))
    created = client.start("c3", "sh", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 0.02; done")
    assert client.output(created.stdout_stream) == b"1\n2\n3\n4\n5\n"
    client.call(get_facts=pb.GetFacts())
    before = [len(stream.data) for stream in endless]
    heard = list(zip(endless, before, strict=True))
    client.until(lambda: all(len(stream.data) > begun + (1 << 20) for stream, begun in heard), "much of both")


def test_streams_with_full_windows_take_turns(client: Client) -> None:
    """Of two streams with a full window each, neither gets far ahead of the other."""
    streams = []
    for name in ("c1", "c2"):
        # At this message a window is sent, and the pipe holds the same amount.
        script = f"head -c {2 * frames.WINDOW} /dev/zero; echo full >&2; sleep 100"
        created = client.call(create_container=creation(name, "sh", "-c", script)).created
        streams.append(Stream(created.stdout_stream, take=False))
        client.streams[created.stdout_stream] = streams[-1]
        said = client.streams.setdefault(created.stderr_stream, Stream(created.stderr_stream))
        client.call(start_container=pb.StartContainer(id=name))
        client.until(lambda said=said: said.data == b"full\n", "a full pipe")  # type: ignore[misc]
    for stream in streams:
        client.until(lambda stream=stream: len(stream.data) == frames.WINDOW, "a window full")  # type: ignore[misc]
        stream.consumed = frames.WINDOW
    credits = [frames.credit(stream.number, frames.WINDOW, 2 * frames.WINDOW) for stream in streams]
    client.socket.sendall(b"".join(map(frames.encode, credits)))
    turns = []
    while any(len(stream.data) < 2 * frames.WINDOW for stream in streams):
        frame = client.next_frame()
        client.data(frame)
        turns.append(frame.stream)
    ahead = itertools.accumulate(1 if number == streams[0].number else -1 for number in turns)
    assert all(abs(frames_ahead) <= 2 for frames_ahead in ahead), turns


def test_an_abandoned_output_does_not_block_its_process(client: Client) -> None:
    """A departed reader does not block the process."""
    created = client.call(create_container=creation("c1", "sh", "-c", "seq 1 200000; exit 3")).created
    client.send(frames.credit(created.stdout_stream, 0, 0, fin=True))
    client.call(start_container=pb.StartContainer(id="c1"))
    assert client.exited("c1").exit_code == 3
    assert created.stdout_stream not in client.streams
    client.send(frames.credit(created.stdout_stream, 0, 65536))
    client.call(get_facts=pb.GetFacts())


def test_output_of_an_exec_of_a_lost_connection_arrives(zone: Zone) -> None:
    """A creation whose connection ends: the list has its result, and its streams wait for credit."""
    client = zone.connect()
    client.begin(create_container=creation("c1", "sh", "-c", "echo hi"))
    # The answer proves that the creation has begun.
    client.call(get_facts=pb.GetFacts())
    client.close()
    client = zone.connect()
    (process,) = client.call(list_processes=pb.ListProcesses()).processes.processes
    client.call(start_container=pb.StartContainer(id="c1"))
    client.exited("c1")
    assert not client.streams
    client.send(frames.credit(process.created.stdout_stream, 0, frames.WINDOW))
    assert client.output(process.created.stdout_stream) == b"hi\n"


def test_a_list_waits_for_a_deletion_of_a_lost_connection(zone: Zone) -> None:
    """The list waits for work of the lost connection, and then arrives."""
    client = zone.connect()
    client.call(create_container=creation("c1", "true"))
    client.begin(delete_container=pb.DeleteContainer(id="c1"))
    client.call(get_facts=pb.GetFacts())
    client.close()
    client = zone.connect()
    for _ in range(3):
        if not client.listed():
            break
    else:
        pytest.fail("the container is still there")
