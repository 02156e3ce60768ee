"""Any order of claims, pods, restarts and reboots: ledger, slice and claims agree in the end."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import grpc.aio
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.dra.claims.claim import Consumer, WantedClaim
from cluster.dra.claims.prepare import Claims
from cluster.dra.claims.turns import claim_turns
from cluster.dra.config import DraConfig
from cluster.dra.model import ZoneMemory
from cluster.dra.protectd_reservations import ProtectdReservations
from cluster.dra.slices.document import Document, NodeSlice, SliceVersion, devices, document
from cluster.dra.slices.keeper import SliceKeeper
from daemonkit.config import Seconds
from daemonkit.faults import Exhausted, Fault, Unreachable
from daemonkit.quantity import quantity_text, whole
from daemonkit.rpc.channels import channel
from tests.support.dra.claims import allocated
from tests.support.labels.api_server import NAME
from tests.support.protect.memory_toolstack import MemoryToolstack
from tests.support.protect.served import TIMEOUT, Served, served
from tests.support.waiting import until
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import reservations_pb2 as rpb

MIB = 1 << 20
OVERHEAD = 8 * MIB
CLAIMS = tuple("abc")
SIZES = (256 * MIB, 512 * MIB, 1024 * MIB, 2048 * MIB)
claims = st.sampled_from(CLAIMS)
zones = st.sampled_from(("y", "z"))
daemons = st.sampled_from(("driver", "protectd"))
sized = st.tuples(claims, st.sampled_from(SIZES))
operations = st.one_of(
    st.tuples(st.just("claim"), sized),  # most pods claim this, and most scripts too
    st.tuples(st.just("claim"), sized),
    st.tuples(st.just("allocate"), sized),
    st.tuples(st.just("prepare"), claims),
    st.tuples(st.just("prepare in vain"), claims),
    st.tuples(st.just("unprepare"), claims),
    st.tuples(st.just("unprepare"), claims),
    st.tuples(st.just("delete"), claims),
    st.tuples(st.just("start pod"), claims),
    st.tuples(st.just("end pod"), claims),
    st.tuples(st.just("start plain"), zones),
    st.tuples(st.just("end plain"), zones),
    st.tuples(st.just("kill"), daemons),
    st.tuples(st.just("start"), daemons),
    st.tuples(st.just("reboot"), st.none()),
)


class MemoryApi:
    """The API server: claims by name, and slices.  ``shared``: claims can share a device."""

    def __init__(self, shared: bool) -> None:
        self.shared = shared
        self.claims: dict[str, dict[str, Any]] = {}
        self.slices: dict[str, Document] = {}

    async def claim(self, namespace: str, name: str) -> dict[str, object] | None:
        return self.claims.get(name)

    async def node_uid(self, node: str) -> str:
        return f"uid-of-{node}"

    async def shares_capacity(self, trial: NodeSlice) -> bool:
        return self.shared

    async def slice(self, name: str) -> Document | None:
        return self.slices.get(name)

    async def create(self, wanted: NodeSlice) -> Document:
        assert wanted.name not in self.slices
        return self._put(wanted)

    async def replace(self, wanted: NodeSlice, there: Document) -> Document:
        assert there == self.slices[wanted.name]
        return self._put(wanted)

    def _put(self, wanted: NodeSlice) -> Document:
        body = document(wanted, SliceVersion.V1)
        before = self.slices.get(wanted.name)
        if before is not None:
            assert body["spec"]["pool"]["generation"] > before["spec"]["pool"]["generation"]
            if self.shared:
                assert [one["name"] for one in devices(body)] == [one["name"] for one in devices(before)]
        self.slices[wanted.name] = body
        return body

    @property
    def devices(self) -> dict[str, int]:
        """The published devices, with their bytes of memory."""
        found = [device for one in self.slices.values() for device in devices(one)]
        sizes = {str(one["name"]): whole(one["capacity"]["memory"]["value"]) for one in found}
        assert len(sizes) == len(found), "no two have one name"
        return sizes

    @property
    def tainted(self) -> bool:
        return any("taints" in device for found in self.slices.values() for device in devices(found))

    def place(self, size: int) -> str:
        """The scheduler's device for a claim; "" if no device has enough room."""
        taken = dict.fromkeys(self.devices, 0)
        for claim in self.claims.values():
            (result,) = claim["status"]["allocation"]["devices"]["results"]
            whole_device = 1 << 60
            taken[result["device"]] = taken.get(result["device"], 0) + (
                whole(result["consumedCapacity"]["memory"]) if self.shared else whole_device
            )
        return next((name for name, has in self.devices.items() if taken[name] + size <= has), "")


class Node:
    """One driver and one protectd after another; a kubelet that repeats failed calls.

    ``held``: claims that the kubelet has prepared and not unprepared yet, with their sizes, as in its
    checkpoint over restarts.  ``due``: failed calls, to be repeated: True to prepare.
    """

    def __init__(self, folder: Path, shared: bool) -> None:
        self.folder = folder
        self.toolstack = MemoryToolstack()
        self.toolstack.overhead = OVERHEAD
        self.api = MemoryApi(shared)
        self.config = DraConfig(
            node=NAME,
            write_interval=Seconds(0.001),
            split_interval=Seconds(0.001),
            protect_socket=folder / "protect.sock",
        )
        self.sizes: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.due: dict[str, bool] = {}
        self.count = 0
        self.protectd: Served | None = None
        self.claims: Claims | None = None
        self._protectd, self._driver = AsyncExitStack(), AsyncExitStack()
        self._keeping: asyncio.Task[None] | None = None

    async def start(self, daemon: str) -> None:
        if daemon == "protectd" and self.protectd is None:
            self.protectd = await self._protectd.enter_async_context(served(self.folder, self.toolstack))
        if daemon == "driver" and self.claims is None:
            link = await self._driver.enter_async_context(channel(self.config.protect_socket))
            protectd = ProtectdReservations(link)
            keeper = SliceKeeper(self.config, self.api, protectd, lambda *_: None)
            turns = self._driver.enter_context(claim_turns(self.folder / "claims.lock"))
            self.claims = Claims(self.config, self.api, protectd, keeper, self, turns)
            self._keeping = asyncio.create_task(self._keep(protectd, keeper))

    async def kill(self, daemon: str) -> None:
        if daemon == "protectd":
            self.protectd = None
            await self._protectd.aclose()
        elif self.claims is not None:
            self.claims = None
            assert self._keeping is not None
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
            await self._driver.aclose()

    def tell(self, claim: WantedClaim, pods: Sequence[Consumer], cause: str) -> None:
        """Events are not tested here."""

    async def _keep(self, protectd: ProtectdReservations, keeper: SliceKeeper) -> None:
        """The work of ``cluster.dra.daemon``, without its sockets and its pauses."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keeper.keep())
            while True:
                memory: ZoneMemory | None
                try:
                    async for memory in protectd.watch():
                        keeper.show(memory, {})
                except Fault:
                    keeper.show(None, {})
                await asyncio.sleep(0.01)

    async def do(self, verb: str, what: Any) -> None:
        match verb:
            case "claim":
                await self._allocate(*what)
                await self.do("prepare", what[0])
            case "allocate":
                await self._allocate(*what)
            case "prepare" if self._may_prepare(what):
                self.due[what] = True
                await self._ask(what)
            case "unprepare" if what in self.held or what in self.due:
                await self._unprepare(what)
            case "prepare in vain" if what not in self.held and self._may_prepare(what):
                # The answer is lost: its caller is gone, and protectd may or may not have done the work.
                self.due[what] = True
                asking = asyncio.create_task(self._ask(what))
                await asyncio.sleep(0)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            case "delete" if what not in self.held and what not in self.due:
                self.api.claims.pop(what, None)
            case "start pod" if what in self.held and what not in self.due:
                await self._zone(f"pod-{what}", pod_uid=f"pod-{self.uid(what)}")
            case "start plain":
                await self._zone(what, resources=pb.ZoneResources(memory_bytes=512 * MIB))
            case "end pod" | "end plain":
                await self._end(f"pod-{what}" if verb == "end pod" else what)
            case "kill":
                await self.kill(what)
            case "start":
                await self.start(what)
            case "reboot":
                await self.reboot()

    def _may_prepare(self, name: str) -> bool:
        return name in self.api.claims and self.due.get(name, True)

    async def _unprepare(self, name: str) -> None:
        """The pod's end first: a kubelet unprepares no running pod."""
        if self.protectd is not None:
            await self._end(f"pod-{name}")
            self.due[name] = False
            await self._ask(name)

    def uid(self, name: str) -> str:
        return str(self.api.claims[name]["metadata"]["uid"])

    async def _allocate(self, name: str, size: int) -> None:
        """As the scheduler does: within the slice's remaining capacity."""
        if name in self.api.claims or not (device := self.api.place(size)):
            return
        self.count += 1
        uid = f"uid-{name}-{self.count}"
        made = allocated(name, uid, quantity_text(size), f"pod-{uid}", device=device, shared=self.api.shared)
        self.api.claims[name], self.sizes[name] = made, size

    async def _ask(self, name: str) -> None:
        """Prepare or unprepare, as due; stays due if the driver is away or fails."""
        uid = self.uid(name)
        if self.claims is None:
            return
        try:
            if self.due[name]:
                await self.claims.prepare("default", name, uid)
                self.held[name] = self.sizes[name]
            else:
                await self.claims.unprepare(uid)
                self.held.pop(name, None)
        except Fault as fault:
            # Unreachable also until the client has noticed protectd's return.
            short = isinstance(fault, Exhausted) and self.due[name]
            assert short or isinstance(fault, Unreachable), fault
            return
        del self.due[name]

    async def _zone(self, zone_id: str, **more: object) -> None:
        if self.protectd is not None:
            with suppress(grpc.aio.AioRpcError):  # no room, or already present
                await self.protectd.create_zone(zone_id, **more)

    async def _end(self, zone_id: str) -> None:
        if self.protectd is not None:
            request = pb.DestroyZoneRequest(id=zone_id)
            await self.protectd.clients.zones.DestroyZone(request, timeout=TIMEOUT)

    async def reboot(self) -> None:
        """Both daemons end, and all domains with them; disks stay."""
        for daemon in ("driver", "protectd"):
            await self.kill(daemon)
        for domain in self.toolstack.domains.values():
            await domain.agent.stop()
        self.toolstack.domains.clear()
        for daemon in ("protectd", "driver"):
            await self.start(daemon)

    async def settle(self) -> None:
        """Both daemons run, zones without claims have ended, and the kubelet's calls have succeeded."""
        await self.start("protectd")
        await self.start("driver")
        for zone_id in ("y", "z"):
            await self._end(zone_id)
        async with asyncio.timeout(TIMEOUT):
            while self.due:
                for name in list(self.due):
                    await self._ask(name)
                await asyncio.sleep(0.005)

    async def check(self) -> None:
        """The three books agree."""
        assert self.protectd is not None
        answer = await self.protectd.clients.reservations.ListReservations(
            rpb.ListReservationsRequest(), timeout=TIMEOUT
        )
        found = {one.id: one.memory_bytes + one.overhead_bytes for one in answer.reservations}
        assert found == {self.uid(name): size for name, size in self.held.items()}
        assert {one.id: one.claim for one in answer.reservations} == {
            self.uid(name): f"default/{name}" for name in self.held
        }
        memory = (await self.protectd.clients.host.Info(pb.InfoRequest(), timeout=TIMEOUT)).memory
        assert memory.free_bytes == memory.total_bytes - sum(found.values())
        await until(lambda: self._published(memory.total_bytes), TIMEOUT)

    def _published(self, total: int) -> bool:
        """True if the slice has all memory, and in the split mode each claim its device."""
        found = self.api.devices
        claims = {self._device(name): size for name, size in self.held.items()}
        mine = self.api.shared or claims.items() <= found.items()
        return mine and sum(found.values()) == total and not self.api.tainted

    def _device(self, name: str) -> str:
        (result,) = self.api.claims[name]["status"]["allocation"]["devices"]["results"]
        return str(result["device"])


async def _play(folder: Path, shared: bool, script: list[tuple[str, Any]]) -> None:
    node = Node(folder, shared)
    try:
        await node.start("protectd")
        await node.start("driver")
        await until(lambda: node.api.devices, TIMEOUT)
        for verb, what in script:
            await node.do(verb, what)
        await node.settle()
        await node.check()
        await node.reboot()
        await node.settle()
        await node.check()
    finally:
        await node.kill("driver")
        await node.kill("protectd")


@settings(max_examples=60)
@given(st.booleans(), st.lists(operations, min_size=6, max_size=40))
def test_any_order_of_claims_pods_and_restarts_keeps_the_books(
    shared: bool, script: list[tuple[str, Any]]
) -> None:
    with tempfile.TemporaryDirectory(prefix="xenpod-") as folder:
        asyncio.run(_play(Path(folder), shared, script))
