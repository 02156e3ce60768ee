"""The gRPC service protect.v1.Zones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

import grpc.aio

from daemonkit.faults import Invalid
from daemonkit.rpc.interceptors import read_only
from protect.config import ProtectdConfig
from protect.model import checks
from protect.model.ports import Splice
from protect.model.statistics import StatsKind
from protect.model.toolstack import Toolstack
from protect.server import statistics, translate, zone_requests
from protect.state.daemon_lifetime import DaemonLifetime
from protect.state.output_memory import OutputMemory
from protect.state.registry import Registry
from protect.state.runtime import ZoneRuntime
from protect.zones import (
    admission,
    connect,
    console,
    dial,
    disk_rates,
    inspect,
    stats,
)
from protect.zones.destroy import ZoneRemoval
from protect.zones.launch import ZoneLaunch
from protect.zones.reconcile import Reconcile
from protect.zones.recovery.orphans import Orphans
from protect.zones.recovery.shutdown import ZoneShutdown
from protect.zones.size import resize
from protect.zones.size.sizing import Sizing
from protect.zones.upkeep import pause
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class ZoneVerbs:
    """Verbs with collaborators of their own."""

    launcher: ZoneLaunch
    removal: ZoneRemoval
    reconcile: Reconcile
    orphans: Orphans
    shutdown: ZoneShutdown
    sizing: Sizing


@dataclass(frozen=True, eq=False)
class ZonesServicer(protect_pb2_grpc.ZonesServicer):
    """Each method checks the request, calls a verb, and translates the result."""

    registry: Registry
    toolstack: Toolstack
    splice: Splice
    lifetime: DaemonLifetime
    memory: OutputMemory
    config: ProtectdConfig
    verbs: ZoneVerbs

    async def CreateZone(self, request: pb.CreateZoneRequest, context: Context) -> pb.Zone:
        wanted = zone_requests.zone_request(request)
        spec = admission.zone_spec(
            self.config,
            self.toolstack.capabilities(),
            self.registry.reservations.values(),
            wanted,
            hotplug=await self.toolstack.hotplugs_memory(wanted.kernel),
        )
        await self.verbs.launcher.launch(spec)
        return self._shown(self.registry.zone("create zone", spec.id))

    async def ConnectNetwork(
        self, request: pb.ConnectNetworkRequest, context: Context
    ) -> pb.ConnectNetworkResponse:
        operation = "connect network"
        zone_id = checks.identifier(operation, "zone", request.zone_id)
        netns = checks.path(operation, "network namespace", request.netns_path)
        interface = checks.interface(operation, request.interface)
        await connect.connect(
            self.registry,
            self.toolstack,
            self.splice,
            zone_id,
            netns,
            interface,
            spoof_check=not request.no_spoof_check,
        )
        return pb.ConnectNetworkResponse()

    @read_only
    async def GetZone(self, request: pb.GetZoneRequest, context: Context) -> pb.Zone:
        return self._shown(self.registry.zone("get zone", checks.identifier("get zone", "zone", request.id)))

    @read_only
    async def ListZones(self, request: pb.ListZonesRequest, context: Context) -> pb.ListZonesResponse:
        return pb.ListZonesResponse(zones=[self._shown(zone) for zone in self.registry.zones.values()])

    async def DestroyZone(self, request: pb.DestroyZoneRequest, context: Context) -> pb.DestroyZoneResponse:
        await self.verbs.removal.destroy(checks.identifier("destroy zone", "zone", request.id))
        return pb.DestroyZoneResponse()

    async def PauseZone(self, request: pb.PauseZoneRequest, context: Context) -> pb.Zone:
        zone_id = checks.identifier("pause zone", "zone", request.id)
        await pause.pause(self.registry, self.toolstack, zone_id)
        return self._shown(self.registry.zone("pause zone", zone_id))

    async def ResumeZone(self, request: pb.ResumeZoneRequest, context: Context) -> pb.Zone:
        zone_id = checks.identifier("resume zone", "zone", request.id)
        await pause.resume(self.registry, self.toolstack, zone_id)
        return self._shown(self.registry.zone("resume zone", zone_id))

    async def ZoneConsole(
        self, request: pb.ZoneConsoleRequest, context: Context
    ) -> AsyncIterator[pb.ZoneConsoleResponse]:
        zone_id = checks.identifier(console.OPERATION, "zone", request.id)
        shown = console.console(
            self.registry,
            self.toolstack,
            self.lifetime.stopping,
            zone_id,
            request.lines,
            following=request.follow,
        )
        async with aclosing(shown) as pieces:
            async for piece in pieces:
                yield pb.ZoneConsoleResponse(data=piece)

    @read_only
    async def ZoneFacts(self, request: pb.ZoneFactsRequest, context: Context) -> pb.ZoneFactsResponse:
        zone_id = checks.identifier("ask zone", "zone", request.id)
        return pb.ZoneFactsResponse(**asdict(await inspect.facts(self.registry, zone_id)))

    async def Dial(
        self, request_iterator: AsyncIterator[pb.DialInput], context: Context
    ) -> AsyncIterator[pb.DialOutput]:
        first = await anext(aiter(request_iterator), None)
        if first is None or first.WhichOneof("input") != "start":
            raise Invalid("dial", "", "the first message is not start")
        zone_id = checks.identifier("dial", "zone", first.start.zone_id)
        port = checks.port("dial", first.start.port)
        data = _data(request_iterator)
        dialled = dial.dial(
            self.registry, self.memory, self.lifetime, self.config.limits, zone_id, port, data
        )
        async with aclosing(dialled) as outputs:
            async for output in outputs:
                match output:
                    case dial.Connected():
                        yield pb.DialOutput(connected=pb.Empty())
                    case dial.DialEof():
                        yield pb.DialOutput(eof=True)
                    case bytes():
                        yield pb.DialOutput(data=output)

    @read_only
    async def ZoneStats(self, request: pb.ZoneStatsRequest, context: Context) -> pb.ZoneStatsResponse:
        operation = "stats"
        ids = [checks.identifier(operation, "zone", one) for one in request.ids]
        zones = [self.registry.zone(operation, one) for one in dict.fromkeys(ids)]
        answers = await stats.gather(
            self.config.timeouts,
            zones or self.registry.zones.values(),
            StatsKind.DETAILS if request.details else StatsKind.ZONE,
        )
        return statistics.zone_stats(
            answers.items(), await stats.counted(self.registry, self.toolstack, answers)
        )

    async def ResizeZone(self, request: pb.ResizeZoneRequest, context: Context) -> pb.ResizeZoneResponse:
        zone_id = checks.identifier("resize zone", "zone", request.id)
        wanted = zone_requests.size("resize zone", zone_id, request.resources)
        not_done = await resize.resize(
            self.registry, self.verbs.sizing, self.config, zone_id, wanted, only_more=request.only_more
        )
        if request.HasField("disk_rates"):
            rates = zone_requests.disk_rates("resize zone", zone_id, request.disk_rates)
            limits = self.config.limits.disk_rates
            possible = self.toolstack.capabilities().disk_rates
            held = disk_rates.allowed("resize zone", zone_id, rates, limits, possible=possible)
            await disk_rates.change(self.registry, self.toolstack, zone_id, held)
        zone = self._shown(self.registry.zone("resize zone", zone_id))
        return pb.ResizeZoneResponse(zone=zone, not_done=not_done)

    @read_only
    async def ListStrangers(
        self, request: pb.ListStrangersRequest, context: Context
    ) -> pb.ListStrangersResponse:
        found = await self.verbs.orphans.listed()
        return pb.ListStrangersResponse(strangers=[translate.orphan(one) for one in found])

    async def AdoptZone(self, request: pb.AdoptZoneRequest, context: Context) -> pb.Zone:
        uuid = zone_requests.uuid("adopt zone", request.uuid)
        return self._shown(await self.verbs.reconcile.adopt_orphan(uuid))

    async def RemoveStranger(
        self, request: pb.RemoveStrangerRequest, context: Context
    ) -> pb.RemoveStrangerResponse:
        await self.verbs.orphans.remove(zone_requests.uuid("remove zone", request.uuid))
        return pb.RemoveStrangerResponse()

    async def ShutdownZones(
        self, request: pb.ShutdownZonesRequest, context: Context
    ) -> pb.ShutdownZonesResponse:
        seconds = zone_requests.shutdown_seconds(request.deadline_ns)
        return pb.ShutdownZonesResponse(left=await self.verbs.shutdown.shutdown(seconds))

    def _shown(self, runtime: ZoneRuntime) -> pb.Zone:
        toolstack = self.toolstack.name
        return translate.zone(
            runtime.zone, connected=runtime.connected, toolstack=toolstack, paused=runtime.paused
        )


async def _data(messages: AsyncIterator[pb.DialInput]) -> AsyncIterator[bytes]:
    """The caller's data, until its eof."""
    async for message in messages:
        match message.WhichOneof("input"):
            case "data":
                yield message.data
            case "eof":
                return
            case _:
                raise Invalid("dial", "", "a message after the first is start, or nothing known")
