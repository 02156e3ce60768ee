"""Checks of a RunPodSandbox request: every value that cannot be honoured is refused by name."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from cri.checks.annotations import check_annotations
from cri.checks.cpu import check_cpu
from cri.checks.fields import RUN, check_hostname, check_map, check_name, check_path
from cri.checks.host_devices import check_pod as check_devices
from cri.checks.security import check_pod_security
from cri.checks.storage import check_storage
from cri.config import DEFAULT_HANDLER, HandlerConfig, HostNamespaces
from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_MOST_PORTS = 4096
# Namespaced sysctls by Kubernetes' definition.  Each zone has its own kernel; the fake's zones do not.
_SYSCTL = re.compile(
    r"(kernel\.shm[a-z_]+|kernel\.msg[a-z_]+|kernel\.sem|fs\.mqueue\.[a-z_]+|net\.[A-Za-z0-9_.-]+)"
)
_SYSCTL_VALUE = re.compile(r"[\x20-\x7e\t]{0,1024}")


def handler_name(wanted: str, handlers: Mapping[str, HandlerConfig]) -> str:
    """The handler named ``wanted``; "" means the default.  Invalid: no handler has this name."""
    name = wanted or DEFAULT_HANDLER
    if name not in handlers:
        known = ", ".join(sorted(handlers)) or "none"
        raise Invalid(RUN, f"runtime handler {name!r:.80}", "not configured", f"there are: {known}")
    return name


def check_sandbox(config: cri.PodSandboxConfig, handler: str, handlers: Mapping[str, HandlerConfig]) -> None:
    """Invalid, Refused or Denied for impossible requests; ``handler``: the pod's, a key of ``handlers``."""
    check_name(RUN, "metadata.name", config.metadata.name)
    check_name(RUN, "metadata.namespace", config.metadata.namespace, required=False)
    check_name(RUN, "metadata.uid", config.metadata.uid, required=False)
    check_hostname(RUN, config.hostname)
    check_map(RUN, "labels", config.labels)
    check_map(RUN, "annotations", config.annotations)
    check_annotations(config.metadata.name, config.annotations, handler, handlers[handler])
    check_devices(config, handlers[handler])
    check_storage(config.annotations)
    if config.log_directory:
        check_path(RUN, "log_directory", config.log_directory, absolute=True)
    if config.HasField("windows"):
        raise Invalid(RUN, config.metadata.name, "windows is set", "zones run Linux")
    _check_dns(config.dns_config)
    _check_ports(config)
    _check_sysctls(config.linux.sysctls)
    for figures in (config.linux.resources, config.linux.overhead):
        check_cpu(RUN, figures)
    host_is_zone = [name for name, one in handlers.items() if one.host_namespaces is HostNamespaces.ZONE]
    check_pod_security(config.metadata.name, config.linux.security_context, handler, host_is_zone)


def _check_dns(dns: cri.DNSConfig) -> None:
    for kind, values in (("servers", dns.servers), ("searches", dns.searches), ("options", dns.options)):
        if len(values) > 64:
            raise Invalid(RUN, f"dns_config.{kind}", "more than 64")
        for value in values:
            if not value or len(value) > 255 or any(c.isspace() or not c.isprintable() for c in value):
                raise Invalid(RUN, f"dns_config.{kind} {value!r:.80}", "not a word")
    for server in dns.servers:
        try:
            ipaddress.ip_address(server)
        except ValueError:
            raise Invalid(RUN, f"dns_config.servers {server!r:.80}", "not an address") from None


def _check_ports(config: cri.PodSandboxConfig) -> None:
    if len(config.port_mappings) > _MOST_PORTS:
        raise Invalid(RUN, "port_mappings", f"more than {_MOST_PORTS}")
    for mapping in config.port_mappings:
        if not (0 <= mapping.host_port < 65536 and 0 < mapping.container_port < 65536):
            raise Invalid(
                RUN, f"port mapping {mapping.host_port}:{mapping.container_port}", "not port numbers"
            )
        if mapping.protocol not in cri.Protocol.values():
            raise Invalid(RUN, f"port mapping protocol {mapping.protocol}", "unknown")
        if mapping.host_ip:
            try:
                ipaddress.ip_address(mapping.host_ip)
            except ValueError:
                raise Invalid(
                    RUN, f"port mapping host_ip {mapping.host_ip!r:.80}", "not an address"
                ) from None


def _check_sysctls(sysctls: Mapping[str, str]) -> None:
    for name, value in sysctls.items():
        if not _SYSCTL.fullmatch(name) or ".." in name:
            raise Invalid(RUN, f"sysctl {name!r:.80}", "not one of the namespaced sysctls")
        if not _SYSCTL_VALUE.fullmatch(value):
            raise Invalid(RUN, f"sysctl {name}", "its value is not a short line of text")
