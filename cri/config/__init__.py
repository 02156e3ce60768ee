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
    EMPTY_DIRS,
    EPHEMERAL_STORAGE,
    KERNEL,
    MEMORY,
    VCPUS,
    EmptyDirPlace,
    HandlerConfig,
    HandlerMode,
    HostNamespaces,
)
from cri.config.requirements import Requirement, RequirementKind, version

__all__ = [
    "ANNOTATIONS",
    "DEFAULT_HANDLER",
    "EMPTY_DIRS",
    "EPHEMERAL_STORAGE",
    "KERNEL",
    "MEMORY",
    "VCPUS",
    "CniConfig",
    "ContainerDefaults",
    "CriConfig",
    "EmptyDirPlace",
    "HandlerConfig",
    "HandlerMode",
    "HostNamespaces",
    "ImagesConfig",
    "Requirement",
    "RequirementKind",
    "StreamingConfig",
    "TlsConfig",
    "ZoneDefaults",
    "version",
]
