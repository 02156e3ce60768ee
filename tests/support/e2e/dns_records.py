"""The records of a cluster's DNS, from Services and EndpointSlices.

The names are those of Kubernetes' DNS specification (https://github.com/kubernetes/dns).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dns.name
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.reversename
from dns.rdatatype import RdataType

Object = Mapping[str, Any]
Record = tuple[dns.name.Name, dns.rdata.Rdata]
"""A name, and its data."""

DOMAIN = dns.name.from_text("cluster.local")
TTL = 5
"""Seconds; short, because the records change with the pods."""

_POD_ADDRESS = re.compile(r"(\d+)-(\d+)-(\d+)-(\d+)")
_VERSION = "1.1.0"
"""The version of the specification."""


@dataclass(frozen=True)
class Endpoint:
    """An address of a headless Service, with its own label below the Service's name."""

    label: str
    address: str
    named: bool
    """Whether the pod has a host name; otherwise the label is made of the address."""


def records(services: Iterable[Object], slices: Iterable[Object]) -> Iterator[Record]:
    """Every record of the cluster, except the records of pods by their address."""
    yield dns.name.from_text("dns-version", DOMAIN), _data(RdataType.TXT, f'"{_VERSION}"')
    by_service: dict[tuple[str, str], list[Object]] = {}
    for one in slices:
        service = (one["metadata"].get("labels") or {}).get("kubernetes.io/service-name", "")
        by_service.setdefault((one["metadata"]["namespace"], service), []).append(one)
    for service in services:
        meta, spec = service["metadata"], service["spec"]
        name = dns.name.from_text(f"{meta['name']}.{meta['namespace']}.svc", DOMAIN)
        if spec.get("type") == "ExternalName":
            yield name, _data(RdataType.CNAME, f"{spec['externalName'].rstrip('.')}.")
        elif spec.get("clusterIP") == "None":
            yield from _headless(name, by_service.get((meta["namespace"], meta["name"]), []))
        else:
            yield from _with_address(name, spec)


def pod_address(name: dns.name.Name) -> dns.rdata.Rdata | None:
    """The A record of ``10-0-0-1.<namespace>.pod``, which needs no pod; None for any other name."""
    pods = dns.name.from_text("pod", DOMAIN)
    if not name.is_subdomain(pods) or len(name) != len(pods) + 2:
        return None
    label = name.labels[0].decode("ascii", "replace")
    found = _POD_ADDRESS.fullmatch(label)
    if found is None or any(int(part) > 255 for part in found.groups()):
        return None
    return _data(RdataType.A, ".".join(found.groups()))


def _with_address(name: dns.name.Name, spec: Object) -> Iterator[Record]:
    for address in spec.get("clusterIPs") or [spec["clusterIP"]]:
        yield name, _address(address)
        yield dns.reversename.from_address(address), _data(RdataType.PTR, name.to_text())
    for port in spec.get("ports") or []:
        yield from _port(name, port, name)


def _headless(name: dns.name.Name, slices: Iterable[Object]) -> Iterator[Record]:
    for one in slices:
        for endpoint in _ready(one):
            own = dns.name.from_text(endpoint.label, name)
            for owner in (name, own):
                yield owner, _address(endpoint.address)
            if endpoint.named:
                yield dns.reversename.from_address(endpoint.address), _data(RdataType.PTR, own.to_text())
            for port in one.get("ports") or []:
                yield from _port(name, port, own)


def _ready(one: Object) -> Iterator[Endpoint]:
    for endpoint in one.get("endpoints") or []:
        if (endpoint.get("conditions") or {}).get("ready") is False:
            continue
        for address in endpoint["addresses"]:
            hostname = endpoint.get("hostname")
            yield Endpoint(hostname or re.sub(r"[.:]", "-", address), address, bool(hostname))


def _port(name: dns.name.Name, port: Object, target: dns.name.Name) -> Iterator[Record]:
    if port.get("name"):
        protocol = str(port.get("protocol", "TCP")).lower()
        owner = dns.name.from_text(f"_{port['name']}._{protocol}", name)
        yield owner, _data(RdataType.SRV, f"0 100 {port['port']} {target.to_text()}")


def _address(address: str) -> dns.rdata.Rdata:
    kind = RdataType.A if ipaddress.ip_address(address).version == 4 else RdataType.AAAA
    return _data(kind, address)


def _data(kind: RdataType, text: str) -> dns.rdata.Rdata:
    return dns.rdata.from_text(dns.rdataclass.IN, kind, text)
