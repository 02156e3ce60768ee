"""The files every container gets from its pod: resolv.conf(5), hosts(5), hostname(5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from daemonkit.faults import Broken
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_HOST_RESOLV = Path("/etc/resolv.conf")
_LIMIT = 64 * 1024


def pod_files(config: cri.PodSandboxConfig, hostname: str, addresses: Sequence[str]) -> Mapping[str, bytes]:
    """The files by their name under /etc."""
    return {
        "hostname": f"{hostname}\n".encode(),
        "hosts": _hosts(hostname, addresses).encode(),
        "resolv.conf": _resolv(config),
    }


def _resolv(config: cri.PodSandboxConfig) -> bytes:
    """The pod's DNS configuration; without one the host's, as in every CRI runtime."""
    if not config.HasField("dns_config"):
        return _host_resolv()
    dns = config.dns_config
    lines = [f"nameserver {server}" for server in dns.servers]
    if dns.searches:
        lines.insert(0, f"search {' '.join(dns.searches)}")
    if dns.options:
        lines.append(f"options {' '.join(dns.options)}")
    return "".join(f"{line}\n" for line in lines).encode()


def _host_resolv() -> bytes:
    try:
        with _HOST_RESOLV.open("rb") as file:
            return file.read(_LIMIT)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise Broken("read", str(_HOST_RESOLV), error.strerror or str(error)) from None


def _hosts(hostname: str, addresses: Sequence[str]) -> str:
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    lines += [f"{address}\t{hostname}" for address in addresses]
    return "".join(f"{line}\n" for line in lines)
