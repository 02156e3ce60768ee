"""A cluster's DNS server: answers from the Services of the API, over UDP and TCP."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import cast

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdata
import dns.reversename
import dns.rrset
import h11
from dns.rdatatype import RdataType

from tests.support.cluster.api import Api, ApiRefused, Object
from tests.support.e2e.dns_records import DOMAIN, TTL, pod_address, records

SERVICES = "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"

_UDP_SIZE = 512
"""Bytes of an answer for a client that names no size of its own (RFC 1035)."""
_RETRY = 0.5
"""Seconds before the next try after the API server refused or closed."""


@dataclass
class Mirror:
    """The objects of one list of the API, kept current by a watch."""

    api: Api
    path: str
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    changes: int = 0
    """Counts the changes; a reader compares the number."""
    listed: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        """Follow the list until the task is cancelled.  If a watch ends, the list is read again."""
        while True:
            with contextlib.suppress(OSError, ApiRefused, h11.RemoteProtocolError):
                found = await self.api.get(self.path)
                self.objects = {_key(one): one for one in found["items"]}
                self.changes += 1
                self.listed.set()
                version = found["metadata"]["resourceVersion"]
                async with contextlib.aclosing(self.api.changes(self.path, version)) as seen:
                    async for kind, one in seen:
                        if kind == "ERROR":  # the version is too old
                            break
                        self.take(kind, one)
            await asyncio.sleep(_RETRY)

    def take(self, kind: str, one: Object) -> None:
        """Apply one change of the watch."""
        if kind == "DELETED":
            self.objects.pop(_key(one), None)
        elif kind != "BOOKMARK":
            self.objects[_key(one)] = one
        self.changes += 1


@dataclass
class Zone:
    """The answers to questions, from two mirrors."""

    services: Mirror
    slices: Mirror
    _table: dict[dns.name.Name, list[dns.rdata.Rdata]] = field(default_factory=dict)
    _seen: tuple[int, int] = (-1, -1)

    def answer(self, query: dns.message.Message) -> dns.message.Message:
        """Answer one query.  Names outside of the cluster do not exist: the tests have no other network."""
        reply = dns.message.make_response(query)
        if query.opcode() != dns.opcode.QUERY or len(query.question) != 1:
            reply.set_rcode(dns.rcode.NOTIMP)
            return reply
        reply.flags |= dns.flags.AA | dns.flags.RA
        (asked,) = query.question
        found = self._find(asked.name)
        if not found and not self._has_children(asked.name):
            reply.set_rcode(dns.rcode.NXDOMAIN)
        fitting = [one for one in found if one.rdtype in (asked.rdtype, RdataType.CNAME)]
        reply.answer = _sets(asked.name, fitting)
        return reply

    def _find(self, name: dns.name.Name) -> list[dns.rdata.Rdata]:
        self._refresh()
        address = pod_address(name)
        return [address] if address is not None else self._table.get(name, [])

    def _has_children(self, name: dns.name.Name) -> bool:
        """Whether a name below has records: the answer is then empty, but the name exists (RFC 8020)."""
        return name.is_subdomain(DOMAIN) and any(one.is_subdomain(name) for one in self._table)

    def _refresh(self) -> None:
        now = (self.services.changes, self.slices.changes)
        if now == self._seen:
            return
        table: defaultdict[dns.name.Name, list[dns.rdata.Rdata]] = defaultdict(list)
        for name, data in records(self.services.objects.values(), self.slices.objects.values()):
            if data not in table[name]:
                table[name].append(data)
        self._table, self._seen = dict(table), now


@contextlib.asynccontextmanager
async def serve_dns(api: Api, address: str) -> AsyncIterator[int]:
    """Serve the cluster's names on ``address`` while the block runs: the port, of UDP and TCP."""
    zone = Zone(Mirror(api, SERVICES), Mirror(api, SLICES))
    async with asyncio.TaskGroup() as group:
        following = [group.create_task(one.follow()) for one in (zone.services, zone.slices)]
        try:
            for mirror in (zone.services, zone.slices):
                await mirror.listed.wait()
            async with listening(zone, address) as port:
                yield port
        finally:
            for task in following:
                task.cancel()


@contextlib.asynccontextmanager
async def listening(zone: Zone, address: str) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _serve_stream(zone, reader, writer)

    tcp = await asyncio.start_server(serve, address, 0)
    try:
        port = int(tcp.sockets[0].getsockname()[1])
        loop = asyncio.get_running_loop()
        udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(zone), (address, port))
        try:
            yield port
        finally:
            udp.close()
    finally:
        tcp.close()


class _Datagrams(asyncio.DatagramProtocol):
    """A query and its answer, one datagram each."""

    def __init__(self, zone: Zone) -> None:
        self._zone = zone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # a type that asyncio's own lacks

    def datagram_received(self, untrusted: bytes, client: tuple[str | object, int]) -> None:
        query = _parsed(untrusted)
        if query is not None:
            self._transport.sendto(_datagram(self._zone.answer(query), query), client)


def _datagram(reply: dns.message.Message, query: dns.message.Message) -> bytes:
    """Encode the reply; a reply that is too long says so, and the client asks again over TCP."""
    size = max(query.payload, _UDP_SIZE)
    try:
        return reply.to_wire(max_size=size)
    except dns.exception.TooBig:
        reply.answer = []
        reply.flags |= dns.flags.TC
        return reply.to_wire(max_size=size)


async def _serve_stream(zone: Zone, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer queries over TCP, each behind its length, until the client closes."""
    try:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                (length,) = struct.unpack("!H", await reader.readexactly(2))
                query = _parsed(await reader.readexactly(length))
                if query is None:
                    return
                wire = zone.answer(query).to_wire()
                writer.write(struct.pack("!H", len(wire)) + wire)
                await writer.drain()
    finally:
        writer.close()


def _parsed(untrusted: bytes) -> dns.message.Message | None:
    """The query; None for bytes that are no query, which get no answer."""
    try:
        query = dns.message.from_wire(untrusted)
    except dns.exception.DNSException:
        return None
    return None if query.flags & dns.flags.QR else query


def _sets(name: dns.name.Name, found: Iterable[dns.rdata.Rdata]) -> list[dns.rrset.RRset]:
    kinds: defaultdict[RdataType, list[dns.rdata.Rdata]] = defaultdict(list)
    for one in found:
        kinds[one.rdtype].append(one)
    return [dns.rrset.from_rdata_list(name, TTL, rows) for rows in kinds.values()]


def _key(one: Object) -> tuple[str, str]:
    return one["metadata"]["namespace"], one["metadata"]["name"]
