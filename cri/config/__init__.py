"""The configuration file of xenpod-cri; every key is explained in packaging/cri.toml."""

from cri.config.file import (
    CniConfig,
    ContainerDefaults,
    CriConfig,
    ImagesConfig,
    StreamingConfig,
    TlsConfig,
    ZoneDefaults,
)
from cri.config.handlers import (
    ANNOTATIONS,
    DEFAULT_HANDLER,
    DISK_RATES,
    KERNEL,
    MEMORY,
    MOST_RATE,
    VCPUS,
    EmptyDirPlace,
    HandlerConfig,
    HandlerMemoryPolicy,
    HandlerMode,
    HostNamespaces,
    Reserve,
)
from cri.config.requirements import Requirement, RequirementKind, version

__all__ = [
    "ANNOTATIONS",
    "DEFAULT_HANDLER",
    "DISK_RATES",
    "KERNEL",
    "MEMORY",
    "MOST_RATE",
    "VCPUS",
    "CniConfig",
    "ContainerDefaults",
    "CriConfig",
    "EmptyDirPlace",
    "HandlerConfig",
    "HandlerMemoryPolicy",
    "HandlerMode",
    "HostNamespaces",
    "ImagesConfig",
    "Requirement",
    "RequirementKind",
    "Reserve",
    "StreamingConfig",
    "TlsConfig",
    "ZoneDefaults",
    "version",
]
