"""The cluster DNS of the e2e tier: records of Services, and a server over UDP and TCP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dns.asyncquery
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import pytest

from tests.support.cluster.api import Api
from tests.support.e2e.dns_server import Mirror, Zone, listening
from tests.support.waiting import until

LOOPBACK = "127.0.0.1"


def service(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "shop"}, "spec": spec}


def endpoints(name: str, *rows: dict[str, Any], ports: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": name}
    meta = {"name": f"{name}-1", "namespace": "shop", "labels": labels}
    return {"metadata": meta, "endpoints": list(rows), "ports": list(ports)}


HTTP = {"name": "http", "protocol": "TCP", "port": 80}
SERVICES = [
    service("web", clusterIP="198.18.0.7", clusterIPs=["198.18.0.7"], ports=[HTTP]),
    service("db", clusterIP="None"),
    service("many", clusterIP="None"),
    service("away", type="ExternalName", externalName="example.com"),
]
SLICES = [
    endpoints(
        "db",
        {"addresses": ["10.64.0.5"], "conditions": {"ready": True}, "hostname": "db-0"},
        {"addresses": ["10.64.0.6"], "conditions": {"ready": True}},
        {"addresses": ["10.64.0.7"], "conditions": {"ready": False}},
        ports=[{"name": "sql", "protocol": "TCP", "port": 5432}],
    ),
    endpoints("many", *({"addresses": [f"10.64.1.{n}"]} for n in range(100))),
]


def zone() -> Zone:
    return Zone(mirror(SERVICES), mirror(SLICES))


def mirror(objects: Sequence[dict[str, Any]]) -> Mirror:
    made = Mirror(Api(0, ""), "")
    for one in objects:
        made.take("ADDED", one)
    return made


def asked(name: str, kind: str) -> tuple[str, list[str]]:
    """The status of the answer, and its records, sorted."""
    reply = zone().answer(dns.message.make_query(name, kind))
    rows = sorted(data.to_text() for rows in reply.answer for data in rows)
    return dns.rcode.to_text(reply.rcode()), rows


@pytest.mark.parametrize(
    ("name", "kind", "rows"),
    [
        ("web.shop.svc.cluster.local", "A", ["198.18.0.7"]),
        ("WEB.shop.svc.Cluster.local", "A", ["198.18.0.7"]),
        ("web.shop.svc.cluster.local", "AAAA", []),
        ("_http._tcp.web.shop.svc.cluster.local", "SRV", ["0 100 80 web.shop.svc.cluster.local."]),
        ("7.0.18.198.in-addr.arpa", "PTR", ["web.shop.svc.cluster.local."]),
        ("db.shop.svc.cluster.local", "A", ["10.64.0.5", "10.64.0.6"]),
        ("db-0.db.shop.svc.cluster.local", "A", ["10.64.0.5"]),
        ("10-64-0-6.db.shop.svc.cluster.local", "A", ["10.64.0.6"]),
        ("5.0.64.10.in-addr.arpa", "PTR", ["db-0.db.shop.svc.cluster.local."]),
        (
            "_sql._tcp.db.shop.svc.cluster.local",
            "SRV",
            [
                "0 100 5432 10-64-0-6.db.shop.svc.cluster.local.",
                "0 100 5432 db-0.db.shop.svc.cluster.local.",
            ],
        ),
        ("away.shop.svc.cluster.local", "A", ["example.com."]),
        ("away.shop.svc.cluster.local", "CNAME", ["example.com."]),
        ("10-64-0-9.shop.pod.cluster.local", "A", ["10.64.0.9"]),
        ("dns-version.cluster.local", "TXT", ['"1.1.0"']),
        ("shop.svc.cluster.local", "A", []),
    ],
)
def test_existing_name_has_its_records(name: str, kind: str, rows: list[str]) -> None:
    assert asked(name, kind) == ("NOERROR", rows)


@pytest.mark.parametrize(
    "name",
    [
        "other.shop.svc.cluster.local",
        "db-1.db.shop.svc.cluster.local",
        "10-64-0-7.db.shop.svc.cluster.local",
        "10-64-0-900.shop.pod.cluster.local",
        "web.shop.svc.cluster.local.shop.svc.cluster.local",
        "kubernetes.io",
        "6.0.64.10.in-addr.arpa",
    ],
)
def test_unknown_name_does_not_exist(name: str) -> None:
    assert asked(name, "A") == ("NXDOMAIN", [])


def test_deleted_service_has_no_records() -> None:
    both = zone()
    query = dns.message.make_query("web.shop.svc.cluster.local", "A")
    assert both.answer(query).answer
    both.services.take("DELETED", SERVICES[0])
    assert both.answer(query).rcode() == dns.rcode.NXDOMAIN


async def test_answer_longer_than_a_datagram_comes_over_tcp() -> None:
    query = dns.message.make_query("many.shop.svc.cluster.local", "A")
    async with listening(zone(), LOOPBACK) as port:
        short = await dns.asyncquery.udp(query, LOOPBACK, 20, port)
        assert short.flags & dns.flags.TC and not short.answer
        whole = await dns.asyncquery.tcp(query, LOOPBACK, 20, port)
    assert len(whole.answer[0]) == 100


async def test_server_still_answers_after_garbage() -> None:
    query = dns.message.make_query("web.shop.svc.cluster.local", "A")
    answer = dns.message.make_response(query).to_wire()
    async with listening(zone(), LOOPBACK) as port:
        loop = asyncio.get_running_loop()
        client, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(LOOPBACK, port)
        )
        for garbage in (b"", b"\xff" * 9, answer):
            client.sendto(garbage)
        client.close()
        assert (await dns.asyncquery.udp(query, LOOPBACK, 20, port)).answer


async def test_broken_watch_starts_again_with_a_new_list(tmp_path: Path) -> None:
    """The first watch ends within a chunk; the list after it has another Service."""
    lists = [[SERVICES[0]], [SERVICES[1]]]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"watch=1" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{")
        else:
            found = lists.pop(0) if len(lists) > 1 else lists[0]
            body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": found}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0, ssl=certificate(tmp_path))
    async with server:
        api = Api(int(server.sockets[0].getsockname()[1]), "token")
        followed = Mirror(api, "/api/v1/services")
        following = asyncio.create_task(followed.follow())
        try:
            await until(lambda: ("shop", "db") in followed.objects, what=lambda: following)
            assert ("shop", "web") not in followed.objects
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following


def certificate(folder: Path) -> ssl.SSLContext:
    asked = ["-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    files = ["-keyout", f"{folder}/key", "-out", f"{folder}/crt"]
    subprocess.run(["openssl", "req", *asked, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    return context
