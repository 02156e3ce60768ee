"""The files in every container from its pod: resolv.conf(5), hosts(5), hostname(5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xenpod_proto.cri.v1 import runtime_pb2 as cri


def pod_files(
    config: cri.PodSandboxConfig, hostname: str, addresses: Sequence[str], host_resolv: bytes = b""
) -> Mapping[str, bytes]:
    """By name under /etc; ``host_resolv``: the host's file, for pods without a DNS configuration."""
    return {
        "hostname": f"{hostname}\n".encode(),
        "hosts": _hosts(hostname, addresses).encode(),
        "resolv.conf": _resolv(config, host_resolv),
    }


def _resolv(config: cri.PodSandboxConfig, host_resolv: bytes) -> bytes:
    """The pod's DNS configuration; without one the host's, as in every CRI runtime."""
    if not config.HasField("dns_config"):
        return host_resolv
    dns = config.dns_config
    lines = [f"nameserver {server}" for server in dns.servers]
    if dns.searches:
        lines.insert(0, f"search {' '.join(dns.searches)}")
    if dns.options:
        lines.append(f"options {' '.join(dns.options)}")
    return "".join(f"{line}\n" for line in lines).encode()


def _hosts(hostname: str, addresses: Sequence[str]) -> str:
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    lines += [f"{address}\t{hostname}" for address in addresses]
    return "".join(f"{line}\n" for line in lines)
