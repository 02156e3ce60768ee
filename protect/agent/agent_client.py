"""The client of one zone's agent: one method for each call, with a deadline and checks both ways.

The declared end of the zone fails a call at once, with the fault and cause of the End.  A cancelled call that
creates streams waits for the agent's answer and gives the streams up, before the caller gets CancelledError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeVar

from daemonkit.faults import Missing, Unreachable
from daemonkit.tasks import complete, race
from protect.agent import replies, requests
from protect.agent.link import AgentLink
from protect.model.container import ContainerSpec
from protect.model.copied_files import FilePart
from protect.model.lifetime import End
from protect.model.ports import Input, Sink
from protect.model.process import (
    AgentHello,
    CreatedProcess,
    DialedConnection,
    GuestSize,
    ProcessList,
    ProcessName,
    Streams,
    ZoneFacts,
)
from protect.model.volume import GuestDevice
from protect.model.zone import GuestNetwork, ZoneSpec
from xenpod_proto.channel.v1 import channel_pb2 as pb

T = TypeVar("T")

_ADOPTION_SECONDS = 5.0  # seconds that a call waits for the adoption of the zone
_DIAL_SECONDS = 15.0  # seconds: longer than the agent's own deadline of 10
_START_SECONDS = 130.0  # seconds: longer than the agent's 60 for the rest of a creation and 60 for the start


class AgentClient:
    """The client of one zone.  Calls wait until launch or adoption calls ``serve``."""

    def __init__(self, zone_id: str, end: End, call_timeout: float, streams_taken: Callable[[], set[int]]):
        """``streams_taken``: streams of the zone's workloads, for the check of new streams."""
        self.call_timeout = call_timeout
        self.connections: set[int] = set()
        """Input streams of the connections made by ``dial``."""
        self._zone_id = zone_id
        self._end = end
        self._streams_taken = streams_taken
        self._link: AgentLink | None = None
        self._serving = asyncio.Event()

    @property
    def connected(self) -> bool:
        return self._link is not None and self._link.connected

    # The connection.

    async def connect(self, link: AgentLink, timeout: float) -> AgentHello:
        """Open the link, for the first time or again."""
        self._link = link
        async with self._until_end():
            return await link.open(timeout)

    def serve(self) -> None:
        """Allow calls: the launch or the adoption of the zone is done."""
        self._serving.set()

    @property
    def serving(self) -> bool:
        return self._serving.is_set()

    async def ready(self) -> None:
        """Wait until calls are allowed.  Unreachable: the wait takes too long."""
        if self._serving.is_set():
            return
        try:
            async with asyncio.timeout(_ADOPTION_SECONDS):
                await race(self._serving.wait(), self._end.raised("use", f"zone {self._zone_id}"))
        except TimeoutError:
            raise self._silent() from None

    async def close(self) -> None:
        """Disconnect for good."""
        if self._link is not None:
            await self._link.close()

    # Of the zone.

    async def configure_zone(self, spec: ZoneSpec) -> None:
        """Configure the zone during launch, before ``serve``, with the scratch disk attached."""
        for request in requests.configuration(spec):
            await self._call_early(request)

    async def configure_network(self, guest: GuestNetwork, name: str) -> None:
        """Set up the zone's first interface as ``name``."""
        await self._call(requests.configure_network(guest, name))

    async def mount_shared(self, session: str) -> None:
        """Mount the directory of the session's server.  Idempotent.  Unsupported: an old agent."""
        await self._call(pb.Request(mount_shared=pb.MountShared(session=session)))

    async def resize(self, cpus: int = 0) -> GuestSize:
        """Let the zone start its first ``cpus`` CPUs; returns the present size."""
        return replies.guest_size(await self._call(requests.resize_zone(cpus)))

    async def find_device(self, name: str, *, gone: bool = False) -> GuestDevice:
        """Wait for a disk in the zone, or with ``gone`` for the removal (all 0).  TooLate: after 20 s."""
        asked = pb.FindDevice(name=name, gone=gone)
        return replies.device(self._zone_id, (await self._call(pb.Request(find_device=asked))).device)

    async def list_processes(self) -> ProcessList:
        """List all processes, during the set-up of a connection, before ``serve``."""
        reply = await self._call_early(pb.Request(list_processes=pb.ListProcesses()))
        return replies.process_list(self._zone_id, reply.processes)

    async def facts(self, agent_version: str) -> ZoneFacts:
        reply = await self._call(pb.Request(get_facts=pb.GetFacts()))
        return replies.facts(reply.facts, agent_version)

    def ask(self, request: pb.Request, read: Callable[[pb.Reply], T]) -> asyncio.Future[T]:
        """Send a query; the future gets the answer or the fault.

        No task, because hundreds of zones may be asked.  A query stays open until the agent answers or the
        connection ends: a silent zone has one open query, not many.
        """
        self._end.check("use", f"zone {self._zone_id}")
        if not self._serving.is_set():
            raise self._silent()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def take(reply: asyncio.Future[pb.Reply]) -> None:
            fault = reply.exception()
            if answer.done():
                return
            if fault:
                answer.set_exception(fault)
            else:
                answer.set_result(read(reply.result()))

        self._linked().ask(request).add_done_callback(take)
        self._end.fail(answer, "use", f"zone {self._zone_id}")
        return answer

    async def power_off(self) -> None:
        """Let the zone kill all processes, write back its file systems, and power off."""
        await self._call(pb.Request(power_off=pb.PowerOff()))

    # Of containers and their processes.

    async def create_container(self, spec: ContainerSpec) -> CreatedProcess:
        """Prepare a container.  CannotStart: crun refuses it; with pid 0 only ``start_container`` says so."""
        request = requests.create_container(spec)
        return await self._create_process(request, tty=spec.tty, stdin=spec.stdin)

    async def start_container(self, container_id: str) -> int:
        """Start a container; returns the pid of the first process, 0 if unknown.  CannotStart as above."""
        return (await self._call(requests.start(container_id), max(_START_SECONDS, self.call_timeout))).pid

    async def update_container(self, container_id: str, resources: bytes) -> None:
        await self._call(requests.update_container(container_id, resources))

    async def delete_container(self, container_id: str, *, early: bool = False) -> None:
        """Delete a container; an unknown id succeeds.  ``early``: before ``serve``."""
        call = self._call_early if early else self._call
        await call(pb.Request(delete_container=pb.DeleteContainer(id=container_id)))

    async def put_files(self, part: FilePart) -> None:
        """Put files.  Exists: the zone has the version."""
        await self._call(requests.put_files(part))

    async def read_file(self, owner: str, volume: str, most: int) -> bytes:
        """The last ``most`` bytes of a file volume with one file; untrusted, except for the length."""
        reply = await self._call(requests.read_file(owner, volume, most))
        return reply.content.content[:most]

    async def exec_process(
        self, process: ProcessName, oci_process: bytes, *, tty: bool, stdin: bool
    ) -> CreatedProcess:
        request = requests.exec_process(process, oci_process, tty=tty, stdin=stdin)
        return await self._create_process(request, tty=tty, stdin=stdin)

    async def delete_exec(self, process: ProcessName) -> None:
        """Kill an exec if running, and let the agent forget the exec; an unknown exec succeeds."""
        await self._call(pb.Request(delete_exec=pb.DeleteExec(process=requests.process_ref(process))))

    async def signal_process(self, process: ProcessName, number: int, *, every: bool) -> None:
        """Send a signal to a process, or with ``every`` to all processes of the container."""
        await self._call(requests.signal_process(process, number, every=every))

    async def resize_terminal(self, process: ProcessName, rows: int, columns: int) -> None:
        await self._call(requests.resize_terminal(process, rows, columns))

    # Of connections to the zone's loopback.

    async def dial(self, port: int) -> DialedConnection:
        """Connect to a TCP port.  Refused: nobody listens.  The caller hangs up."""
        await self.ready()
        link = self._linked()

        async def connect() -> DialedConnection:
            reply = await link.call(pb.Request(dial=pb.Dial(port=port)), _DIAL_SECONDS)
            made = replies.connection(reply.dialed)
            self.connections.add(made.into)
            return made

        return await self._make(connect, self.hang_up)

    async def hang_up(self, made: DialedConnection) -> None:
        """Close a connection in both directions."""
        self.connections.discard(made.into)
        self.drop_output(made.out)
        with suppress(Missing):  # the agent has closed it already
            await self.input(made.into).finish()

    # Of streams.

    def output(self, stream: int, sink: Sink, consumed: int = 0) -> None:
        """Deliver a stream to the sink, from ``consumed`` on.  Missing: the stream ended or was dropped."""
        self._linked().output(stream, sink, consumed)

    def input(self, stream: int) -> Input:
        """The input for writing a stream; Missing: the process has closed it."""
        return self._linked().input(stream)

    def drop_output(self, stream: int) -> None:
        if self._link is not None:
            self._link.drop_output(stream)

    def drop_input(self, stream: int) -> None:
        if self._link is not None:
            self._link.drop_input(stream)

    def drop(self, streams: Streams) -> None:
        """Give up all streams of a process."""
        for number in streams.outputs():
            self.drop_output(number)
        self.drop_input(streams.stdin)

    # How calls are made.

    async def _call(self, request: pb.Request, timeout: float = 0.0) -> pb.Reply:
        await self.ready()
        return await self._call_early(request, timeout)

    async def _call_early(self, request: pb.Request, timeout: float = 0.0) -> pb.Reply:
        async with self._until_end():
            return await self._linked().call(request, timeout or self.call_timeout)

    async def _create_process(self, request: pb.Request, *, tty: bool, stdin: bool) -> CreatedProcess:
        await self.ready()
        link = self._linked()

        async def create() -> CreatedProcess:
            created = (await link.call(request, self.call_timeout)).created
            streams = replies.streams_of(created)
            try:
                replies.check_streams(self._zone_id, streams, self._streams_taken(), tty=tty, stdin=stdin)
            except BaseException:
                self.drop(streams)
                raise
            return CreatedProcess(streams, created.pid)

        async def give_up(made: CreatedProcess) -> None:
            self.drop(made.streams)

        return await self._make(create, give_up)

    async def _make(self, work: Callable[[], Awaitable[T]], undo: Callable[[T], Awaitable[None]]) -> T:
        """Let the agent create an object.  If the caller is cancelled, undo the creation."""
        made: list[T] = []

        async def make() -> None:
            async with self._until_end():
                made.append(await work())

        try:
            await complete(make())
        except asyncio.CancelledError:
            for one in made:
                await complete(undo(one))
            raise
        return made[0]

    def _until_end(self) -> AbstractAsyncContextManager[None]:
        return self._end.bounding("use", f"zone {self._zone_id}")

    def _linked(self) -> AgentLink:
        if self._link is None:
            raise self._silent()
        return self._link

    def _silent(self) -> Unreachable:
        return Unreachable("use zone", self._zone_id, "its agent has not answered yet", "try again")
