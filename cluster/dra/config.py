"""The configuration file of xenpod-dra; every key is explained in packaging/dra.toml."""

from __future__ import annotations

import enum
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

from daemonkit.checkpoints import FaultInjection
from daemonkit.config import (
    Bytes,
    Seconds,
    absolute,
    at_least,
    log_level,
    longer_than_nothing,
    socket_path,
)
from daemonkit.convert import WrongKey
from daemonkit.observe.observe_settings import MetricsConfig

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")  # RFC 1123 subdomain
_NAME_LONGEST = 63  # of a driver's name: resource.k8s.io/v1, ResourceSliceSpec
_SOCKET_NAMES = 40
_LEAST_GRANULE_BYTES = 1 << 20


class SliceMode(enum.Enum):
    """Form of the memory offer: ``SHARED``, one device for all claims; ``SPLIT``, a device for each claim."""

    AUTO = "auto"
    SHARED = "shared"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class ClaimSizes:
    """Allowed memory sizes of claims.

    A claim is rounded up to ``minimum`` and a multiple of ``step``, by the scheduler if it counts the use of
    claims.  A claim without a size has ``default``.  ``minimum_device``: if each claim has its own device, no
    device is offered for the next claim once less memory is left.
    """

    default: Bytes = Bytes(352 << 20)
    minimum: Bytes = Bytes(32 << 20)
    step: Bytes = Bytes(1 << 20)
    minimum_device: Bytes = Bytes(118 << 20)

    def __post_init__(self) -> None:
        at_least(1 << 20, self, "minimum", "step", "minimum_device")
        if self.default < self.minimum:
            raise WrongKey("default", f"{self.default} is less than minimum, {self.minimum}")
        for name in ("default", "minimum"):
            if getattr(self, name) % self.step:
                raise WrongKey(name, f"{getattr(self, name)} is not a multiple of step, {self.step}")

    def rounded(self, size: int) -> int:
        """A size after the scheduler's rounding."""
        beyond = max(size - self.minimum, 0)
        return self.minimum + -(-beyond // self.step) * self.step


@dataclass(frozen=True, slots=True)
class GranulesConfig:
    """Zone memory as an extended resource, instead of claims: for clusters without claims."""

    size: Bytes = Bytes(0)
    """Bytes of a granule; 0: memory is claimed."""
    resource: str = "zones.xenpod.dev/memory"
    """The resource's name; pods ask for whole granules."""
    devices_dir: Path = Path("/var/lib/kubelet/device-plugins")
    """The kubelet's folder of device plugins."""

    def __post_init__(self) -> None:
        at_least(0, self, "size")
        if 0 < self.size < _LEAST_GRANULE_BYTES:
            raise WrongKey("size", f"{self.size} is less than 1 MiB")
        absolute(self, "devices_dir")
        domain, _, name = self.resource.partition("/")
        if not _NAME.fullmatch(domain) or not _NAME.fullmatch(name) or len(name) > _NAME_LONGEST:
            raise WrongKey("resource", f"{self.resource!r:.80} is not a name such as zones.xenpod.dev/memory")
        socket_path("devices_dir", self.socket)

    @property
    def socket(self) -> Path:
        """The plugin's socket."""
        return self.devices_dir / "xenpod.sock"

    @property
    def kubelet_socket(self) -> Path:
        """The kubelet's registration socket for plugins."""
        return self.devices_dir / "kubelet.sock"


@dataclass(frozen=True, slots=True)
class DraConfig:
    """The whole file."""

    driver: str = "zones.xenpod.dev"
    node: str = ""
    """The node's name; "": NODE_NAME of the environment, or else the host's name."""
    kubeconfig: Path | None = None
    """None: the service account of the driver's pod."""
    protect_socket: Path = Path("/run/protect/protect.sock")
    plugins_dir: Path = Path("/var/lib/kubelet/plugins")
    registry_dir: Path = Path("/var/lib/kubelet/plugins_registry")
    instance: str = ""
    """Name of this instance among the driver's instances on this node; "": POD_UID, if set."""
    mode: SliceMode = SliceMode.AUTO
    """``AUTO``: ``SHARED`` if the cluster supports shared devices; until then the driver checks again."""
    write_interval: Seconds = Seconds(10.0)
    """The least time between two writes of the slice."""
    split_interval: Seconds = Seconds(1.0)
    """The least time in ``SPLIT``; each claim waits for a write."""
    check_interval: Seconds = Seconds(300.0)
    """Time until the slice is read again without a change here."""
    log_level: str = "info"
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    sizes: ClaimSizes = field(default_factory=ClaimSizes)
    dom0_memory: Bytes = Bytes(0)
    """dom0's memory for a claim's zone, counted against the node's own memory if the cluster supports the
    feature.

    With the feature, a cluster schedules a pod only if one of its containers names the claim (KEP-5517); off
    by default.
    """
    granules: GranulesConfig = field(default_factory=GranulesConfig)
    faults: FaultInjection = field(default_factory=FaultInjection)

    def __post_init__(self) -> None:
        absolute(self, "kubeconfig", "protect_socket", "plugins_dir", "registry_dir")
        log_level(self)
        at_least(0, self, "dom0_memory")
        longer_than_nothing(self, "write_interval", "split_interval", "check_interval")
        if len(self.driver) > _NAME_LONGEST or not _NAME.fullmatch(self.driver):
            raise WrongKey("driver", f"{self.driver!r} is not the name of a driver, such as zones.xenpod.dev")
        if len(self.instance) > _SOCKET_NAMES or "/" in self.instance:
            raise WrongKey("instance", f"{self.instance!r} is not up to {_SOCKET_NAMES} characters without /")
        socket_path("protect_socket", self.protect_socket)
        socket_path("plugins_dir", self.plugin_socket)
        socket_path("registry_dir", self.registration_socket)

    @property
    def node_name(self) -> str:
        """The name of the node in Kubernetes."""
        return self.node or os.environ.get("NODE_NAME") or socket.gethostname().lower()

    @property
    def plugin_socket(self) -> Path:
        """The driver's socket; each instance has a socket."""
        return self.plugins_dir / self.driver / f"{self._socket('dra')}.sock"

    @property
    def turns_file(self) -> Path:
        """The file for the turns of all instances."""
        return self.plugins_dir / self.driver / "claims.lock"

    @property
    def registration_socket(self) -> Path:
        """The socket where the kubelet finds the driver."""
        return self.registry_dir / f"{self._socket(self.driver)}-reg.sock"

    def _socket(self, name: str) -> str:
        instance = self.instance or os.environ.get("POD_UID", "")
        return f"{name}-{instance}" if instance else name
