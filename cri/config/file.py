"""The configuration file of xenpod-cri; every key is explained in packaging/cri.toml."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cri.config.handlers import DEFAULT_HANDLER, HandlerConfig
from cri.delegate.config import DelegateConfig
from daemonkit.checkpoints import FaultInjection
from daemonkit.config import (
    Bytes,
    Seconds,
    absolute,
    at_least,
    at_most,
    log_level,
    longer_than_nothing,
    socket_path,
)
from daemonkit.convert import WrongKey
from daemonkit.observe.observe_settings import AuditConfig, MetricsConfig, TracesConfig
from images.bounds.limits import ImageLimits
from images.globs import patterns
from images.image_settings import LEVELS, ImageSettings, KernelSettings, PolicySettings
from images.registry import names

_HANDLER = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # of a RuntimeClass: a DNS label (RFC 1123)
_MOST_FILES = 1 << 20  # fs.nr_open of Linux, unless raised
_MOST_PIDS = 1 << 22  # PID_MAX_LIMIT of Linux
_MOST_CPU_PERCENT = 1024 * 100  # of all CPUs that a zone can have


@dataclass(frozen=True, slots=True)
class CniConfig:
    """Places of the network configurations and plugins."""

    conf_dir: Path = Path("/etc/cni/net.d")
    bin_dirs: tuple[Path, ...] = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
    netns_dir: Path = Path("/run/netns")
    timeout: Seconds = Seconds(60.0)
    conf_template: Path | None = None
    """Template, filled in with the kubelet's pod CIDR, for a ``conf_dir`` without a configuration."""

    def __post_init__(self) -> None:
        absolute(self, "conf_dir", "netns_dir", "conf_template", "bin_dirs")
        longer_than_nothing(self, "timeout")
        if not self.bin_dirs:
            raise WrongKey("bin_dirs", "it is empty")


@dataclass(frozen=True, slots=True)
class ContainerDefaults:
    """Limits of a container whose request sets none."""

    nofile: int = 16_384
    pids_limit: int = 0
    shm_size: Bytes = Bytes(64 * 1024 * 1024)

    def __post_init__(self) -> None:
        at_least(0, self, "nofile", "pids_limit")
        at_most(_MOST_FILES, self, "nofile")
        at_most(_MOST_PIDS, self, "pids_limit")
        at_least(1, self, "shm_size")


@dataclass(frozen=True, slots=True)
class ZoneDefaults:
    """Rules for the size of a zone from CRI resources."""

    memory_overhead: Bytes = Bytes(96 * 1024 * 1024)
    """Added to the pod's memory limit for the zone's kernel and agent, if the request has no overhead."""
    cpu_overhead: int = 10
    """Percent of one CPU, added to the pod's CPU limit likewise."""

    def __post_init__(self) -> None:
        at_least(0, self, "cpu_overhead")
        at_most(_MOST_CPU_PERCENT, self, "cpu_overhead")


_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class ImagesConfig:
    """Registries and image storage."""

    certs_dir: Path = Path("/etc/xenpod/certs.d")
    private_targets: tuple[str, ...] = ()
    compression: str = "zstd"
    compression_level: int = 1
    part_size: Bytes = Bytes(4 * 1024 * 1024)
    downloads_per_image: int = 3
    conversions: int = 2
    connect_timeout: Seconds = Seconds(10.0)
    stall_timeout: Seconds = Seconds(60.0)
    pull_timeout: Seconds = Seconds(3600.0)
    pull_stall_timeout: Seconds = Seconds(300.0)
    tries_per_host: int = 3
    retry_delay: Seconds = Seconds(0.5)
    longest_retry_delay: Seconds = Seconds(20.0)
    unfinished_size: Bytes = Bytes(8 * 1024 * 1024 * 1024)
    unfinished_time: Seconds = Seconds(3600.0)
    pinned: tuple[str, ...] = ()
    policy: PolicySettings = field(default_factory=PolicySettings)
    limits: ImageLimits = field(default_factory=ImageLimits)

    def __post_init__(self) -> None:
        absolute(self, "certs_dir")
        at_least(1, self, "downloads_per_image", "conversions", "tries_per_host")
        longer_than_nothing(self, "connect_timeout", "stall_timeout", "pull_timeout", "pull_stall_timeout")
        most = LEVELS.get(self.compression)
        if most is None:
            raise WrongKey("compression", f"{self.compression!r:.80} is not one of {', '.join(LEVELS)}")
        if most and not 1 <= self.compression_level <= most:
            raise WrongKey("compression_level", f"it is not between 1 and {most}, as {self.compression} has")
        if self.longest_retry_delay < self.retry_delay:
            raise WrongKey("longest_retry_delay", "it is shorter than retry_delay")
        if self.pull_stall_timeout <= self.longest_retry_delay:
            raise WrongKey("pull_stall_timeout", "it is not longer than longest_retry_delay")
        patterns(self, "pinned")
        for target in self.private_targets:
            _check_target(target)

    def settings(self, state_dir: Path) -> ImageSettings:
        """The settings of the image part."""
        return ImageSettings(
            state_dir=state_dir,
            certs_dir=self.certs_dir,
            private_targets=self.private_targets,
            compression=self.compression,
            compression_level=self.compression_level,
            part_bytes=self.part_size,
            downloads_per_image=self.downloads_per_image,
            conversions=self.conversions,
            connect_seconds=self.connect_timeout,
            stall_seconds=self.stall_timeout,
            pull_seconds=self.pull_timeout,
            pull_stall_seconds=self.pull_stall_timeout,
            tries_per_host=self.tries_per_host,
            retry_seconds=self.retry_delay,
            retry_most_seconds=self.longest_retry_delay,
            unfinished_bytes=self.unfinished_size,
            unfinished_seconds=self.unfinished_time,
            pinned=self.pinned,
            policy=self.policy,
            limits=self.limits,
        )


def _check_target(target: str) -> None:
    """WrongKey unless the target is a network in CIDR form, an address, or the name of a host."""
    try:
        ipaddress.ip_network(target)
    except ValueError as error:
        if not _HOST.fullmatch(target):
            raise WrongKey("private_targets", f"{target!r:.80} is no network and no host: {error}") from None


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Paths of PEM files; all or none must be set."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    def __post_init__(self) -> None:
        absolute(self, "certificate", "key", "client_ca")
        if self.certificate is None and self.key is not None:
            raise WrongKey("key", "it is of no use without certificate")
        if self.certificate is not None and self.key is None:
            raise WrongKey("certificate", "it is of no use without key")
        if self.client_ca is not None and self.certificate is None:
            raise WrongKey("client_ca", "it is of no use without certificate and key")

    @property
    def on(self) -> bool:
        """Whether the server speaks TLS."""
        return self.certificate is not None


@dataclass(frozen=True, slots=True)
class StreamingConfig:
    """Address and limits of the server for exec, attach and port-forward."""

    address: str = "127.0.0.1:0"
    url_lifetime: Seconds = Seconds(60.0)
    handshake_timeout: Seconds = Seconds(10.0)
    stream_timeout: Seconds = Seconds(30.0)
    idle_timeout: Seconds = Seconds(4 * 3600.0)
    connections: int = 1024
    connections_per_pod: int = 128
    tls: TlsConfig = field(default_factory=TlsConfig)

    def __post_init__(self) -> None:
        if trouble := self._address_trouble():
            raise WrongKey("address", f"{self.address!r:.80} {trouble}")
        at_least(1, self, "connections", "connections_per_pod")
        longer_than_nothing(self, "url_lifetime", "handshake_timeout", "stream_timeout", "idle_timeout")

    def _address_trouble(self) -> str:
        """Why the address is unusable; "": usable."""
        port = self.address.rpartition(":")[2]
        try:
            host = ipaddress.ip_address(self.host)
        except ValueError:
            return "is not <IP address>:<port>"
        if not (port.isascii() and port.isdecimal() and int(port) <= 0xFFFF):
            return "has no port from 0 to 65535"
        if host.is_unspecified:
            return "is where clients are sent to, so it must be one of this host"
        if not host.is_loopback and (not self.tls.on or self.tls.client_ca is None):
            return (
                "is not a loopback address: tls.certificate, tls.key and tls.client_ca are required, as"
                " whoever reaches a stream commands a container"
            )
        return ""

    @property
    def host(self) -> str:
        """The IP address, without brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port; 0: any free port."""
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class CriConfig:
    """The whole of cri.toml."""

    state_dir: Path = Path("/var/lib/xenpod")
    run_dir: Path = Path("/run/xenpod")
    socket: Path | None = None
    guest_dir: Path = Path("/usr/lib/xenpod/guest")
    protect_socket: Path = Path("/run/protect/protect.sock")
    log_level: str = "info"
    faults: FaultInjection = FaultInjection()
    cni: CniConfig = field(default_factory=CniConfig)
    container: ContainerDefaults = field(default_factory=ContainerDefaults)
    zone: ZoneDefaults = field(default_factory=ZoneDefaults)
    images: ImagesConfig = field(default_factory=ImagesConfig)
    kernels: KernelSettings = KernelSettings()
    streaming: StreamingConfig = field(default_factory=StreamingConfig)
    delegate: DelegateConfig = DelegateConfig()
    metrics: MetricsConfig = MetricsConfig()
    traces: TracesConfig = TracesConfig()
    audit: AuditConfig = AuditConfig()
    handlers: Mapping[str, HandlerConfig] = field(default_factory=lambda: {DEFAULT_HANDLER: HandlerConfig()})

    def __post_init__(self) -> None:
        absolute(self, "state_dir", "run_dir", "protect_socket", "socket", "guest_dir")
        log_level(self)
        socket_path("protect_socket", self.protect_socket)
        socket_path("socket" if self.socket else "run_dir", self.listen)
        for name in self.handlers:
            if not _HANDLER.fullmatch(name):
                cause = f"{name!r:.80} is no handler of a RuntimeClass, which is 1 to 63 of [a-z0-9-]"
                raise WrongKey("handlers", cause)
        # A file with other handlers keeps the default handler of ordinary pods.
        whole = {DEFAULT_HANDLER: HandlerConfig()} | dict(self.handlers)
        object.__setattr__(self, "handlers", whole)

    def image_settings(self) -> ImageSettings:
        """The settings of the image part; handlers' kernels are pinned: garbage collection keeps them."""
        kernels = (str(names.parse(one.kernel)) for one in self.handlers.values() if one.kernel)
        settings = self.images.settings(self.state_dir)
        return replace(settings, pinned=(*settings.pinned, *kernels), kernels=self.kernels)

    @property
    def listen(self) -> Path:
        """The path of the CRI socket."""
        return self.socket or self.run_dir / "cri.sock"
